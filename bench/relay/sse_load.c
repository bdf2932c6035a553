/* sse-load - load generator and verifier for streaming LLM proxies (pairs with sse-upstream).
 *
 * One thread, epoll, keep-alive. Closed loop (default): --concurrency streams are kept open, each
 * slot starting its next request when the last one ended; starts are spread over --ramp seconds.
 * Open loop (--rate R): requests start on a schedule whatever the state of the earlier ones, over at
 * most --concurrency connections; TTFT then counts from the scheduled instant.
 * --leave, --slow and --cut make it a client that goes away, one that reads slowly, and one whose upstream breaks off.
 * The result is one JSON object on stdout; --request-log adds one line a request. See README.md for the fields.
 */
#include "common.h"
#include <sys/uio.h>

typedef struct {
  int fd;
  enum { IDLE, SENDING, HEAD, BODY } state;
  bool fresh;                       /* no response seen yet on this connection */
  bool chunked, close_after, is_sse, want_out;
  int64_t body_left;                /* content-length countdown; -1: until EOF */
  enum { C_SIZE, C_EXT, C_DATA, C_CR, C_TRAILER, C_END } cs;
  uint64_t chunk_left, trailer_len;
  uint64_t t_start, t_last;
  uint32_t id, n_ev, n_tok;
  int status;
  uint64_t hash;
  bool bad_seq, bad_hash, got_finish, got_done, got_first, in_window;
  /* --request-log: 0 = not yet, or not told */
  uint64_t t_sent, t_out, t_out_last;          /* the request's last write; first and last output event */
  uint64_t eng_rx, eng_out, eng_out_last;      /* the engine's own stamps: request read, first and last output event */
  uint64_t n_out, content_bytes, usage_tokens;
  bool log_fresh;                              /* the request opened its connection */
  uint64_t ts_last, t_event;                   /* of the event before: the server's stamp, and when it came */
  uint64_t leave_at, resume_at;                /* --leave, --slow; 0 = not */
  bool told_cut;                               /* --cut: an event said that the stream broke off */
  char *hdr; size_t hdr_len, hdr_cap;
  char *carry; size_t carry_len, carry_cap;
  size_t req_off;
} slot_t;

static struct {
  const char *host, *path, *model, *label, *user_hdr[16];
  int port, n_hdr;
  unsigned conc;
  double duration, warmup, ramp, rate, drain, timeout;
  uint64_t max_requests;
  bool stream, poisson, lenient, cut;
  enum { STAY, LEAVE_CLOSE, LEAVE_RESET } leave;
  double leave_within_ms, slow_ms;
  size_t slow_bytes;
  unsigned messages;
  double series;
  size_t prompt_bytes, token_bytes;
  FILE *request_log;
  int pids[64], n_pids;
} o = {.host = "127.0.0.1", .path = "/v1/chat/completions", .model = "sim", .label = "", .port = 9100, .conc = 100,
       .duration = 10, .warmup = 1, .ramp = 1, .drain = 10, .timeout = 60, .stream = true, .poisson = true, .prompt_bytes = 200,
       .messages = 1, .leave_within_ms = 5000};

static int ep;
static slot_t *slots;
static unsigned *free_slots, n_free;                  /* open loop only */
static struct sockaddr_in sa;
static uint64_t t0, w0, w1, t_end;                    /* start, window start/end, end of new requests */
static uint64_t started, in_flight;
static uint32_t next_id = 1;
static struct {
  uint64_t ok, errors, http_err, conn_err, timeouts, truncated, bad_seq, bad_hash, no_done, reconnects, retries, dropped, unfinished, left, cut;
  uint64_t events, w_events, w_requests, w_bytes, reads;
  unsigned peak;
} st;
static hist_t h_ttft, h_ev, h_gap, h_first, h_reqpath, h_total, h_int;
static struct { double t, ev_s, p50, p99, cpu; unsigned streams; } series[3600];   /* --series */
static unsigned n_series;
static char *rbuf;
#define RBUF (256 * 1024)
static char *req_tail;                                /* the body after the id */
static size_t req_tail_len, body_total;
static volatile sig_atomic_t stop_flag;

/* ---------------- process sampling (Linux /proc) ---------------- */
typedef struct { double cpu_s, user_s; long rss_kb, hwm_kb; } proc_t;
static proc_t sample(void) {
  proc_t r = {0, 0, 0, 0};
  for (int i = 0; i < o.n_pids; i++) {
    char p[64], b[4096];
    snprintf(p, sizeof p, "/proc/%d/stat", o.pids[i]);
    FILE *f = fopen(p, "r");
    if (!f) continue;
    size_t n = fread(b, 1, sizeof b - 1, f);
    fclose(f);
    b[n] = 0;
    unsigned long ut = 0, stm = 0;
    char *e = strrchr(b, ')');
    if (e) sscanf(e + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &ut, &stm);
    r.user_s += (double)ut / (double)sysconf(_SC_CLK_TCK);
    r.cpu_s += (double)(ut + stm) / (double)sysconf(_SC_CLK_TCK);
    snprintf(p, sizeof p, "/proc/%d/status", o.pids[i]);
    if (!(f = fopen(p, "r"))) continue;
    long v;
    while (fgets(b, sizeof b, f)) {
      if (sscanf(b, "VmRSS: %ld", &v) == 1) r.rss_kb += v;
      if (sscanf(b, "VmHWM: %ld", &v) == 1) r.hwm_kb += v;
    }
    fclose(f);
  }
  return r;
}

/* ---------------- connections ---------------- */
static void finish(slot_t *s, bool ok);
static bool send_request(slot_t *s);

static void drop(slot_t *s) {
  if (s->fd >= 0) close(s->fd);
  s->fd = -1;
}
static void want_out(slot_t *s, bool out, int op) {
  struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (out ? EPOLLOUT : 0), .data.u32 = (uint32_t)(s - slots)};
  epoll_ctl(ep, op, s->fd, &e);
  s->want_out = out;
}
static bool open_conn(slot_t *s) {
  s->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (s->fd < 0) return false;
  set_nodelay(s->fd);
  if (o.slow_bytes) {                                  /* else the kernel reads ahead for the slow reader */
    int small = 8192;
    setsockopt(s->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  }
  s->log_fresh = true;
  if (connect(s->fd, (struct sockaddr *)&sa, sizeof sa) && errno != EINPROGRESS) { drop(s); return false; }
  s->fresh = true;
  want_out(s, true, EPOLL_CTL_ADD);
  return true;
}
/* Head, and the body as far as it differs from request to request. */
static size_t build_request(slot_t *s, char *b) {
  char *p = b;
  p += sprintf(p, "POST %s HTTP/1.1\r\nhost: %s:%d\r\ncontent-type: application/json\r\n", o.path, o.host, o.port);
  if (o.request_log) p += sprintf(p, "x-request-id: load-%010u\r\n", s->id);
  for (int i = 0; i < o.n_hdr; i++) p += sprintf(p, "%s\r\n", o.user_hdr[i]);
  p += sprintf(p, "content-length: %zu\r\n\r\n{\"model\":\"%s\",\"stream\":%s,\"user\":\"sim-%010u\"", body_total, o.model,
               o.stream ? "true" : "false", s->id);
  return (size_t)(p - b);
}
static bool send_request(slot_t *s) {                  /* false: the connection failed */
  size_t own = build_request(s, rbuf), n = own + req_tail_len;
  while (s->req_off < n) {
    size_t from = s->req_off > own ? s->req_off - own : 0;
    struct iovec v[2] = {{rbuf + s->req_off, own - s->req_off}, {req_tail + from, req_tail_len - from}};
    struct msghdr m = {.msg_iov = s->req_off < own ? v : v + 1, .msg_iovlen = s->req_off < own ? 2 : 1};
    s->t_sent = now_ns();
    ssize_t r = sendmsg(s->fd, &m, MSG_NOSIGNAL);
    if (r < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return false;
      if (!s->want_out) want_out(s, true, EPOLL_CTL_MOD);
      return true;
    }
    s->req_off += (size_t)r;
  }
  if (s->want_out) want_out(s, false, EPOLL_CTL_MOD);
  s->state = HEAD;
  return true;
}
static void reset_response(slot_t *s) {
  s->state = SENDING;
  s->req_off = 0;
  s->hdr_len = s->carry_len = 0;
  s->cs = C_SIZE, s->chunk_left = 0, s->trailer_len = 0;
  s->n_ev = s->n_tok = 0, s->hash = 0, s->status = 0;
  s->bad_seq = s->bad_hash = s->got_finish = s->got_done = s->got_first = false;
  s->t_sent = s->t_out = s->t_out_last = s->eng_rx = s->eng_out = s->eng_out_last = 0;
  s->n_out = s->content_bytes = s->usage_tokens = 0;
  s->ts_last = 0, s->told_cut = false, s->log_fresh = false;
}
static double rng_uniform(void) {                      /* in (0, 1] */
  static uint64_t x = 88172645463325252ull;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return ((double)(x >> 11) + 1) / 9007199254740994.0;
}
static void start(slot_t *s, uint64_t when) {
  started++, in_flight++;
  if (in_flight > st.peak) st.peak = (unsigned)in_flight;
  s->id = next_id++;
  s->t_start = when, s->t_last = now_ns();
  s->in_window = when >= w0 && when < w1;
  reset_response(s);
  s->leave_at = o.leave ? s->t_last + (uint64_t)(o.leave_within_ms * 1e6 * rng_uniform()) : 0;
  if (s->fd < 0) {
    if (!open_conn(s)) { st.conn_err++; finish(s, false); }
    return;
  }
  if (!send_request(s)) {                              /* stale keep-alive connection */
    drop(s), st.reconnects++;
    reset_response(s);
    if (!open_conn(s)) { st.conn_err++; finish(s, false); }
  }
}
static bool may_start(void) {
  return !stop_flag && (!o.max_requests || started < o.max_requests) && now_ns() < t_end;
}
static void finish(slot_t *s, bool ok) {
  uint64_t now = now_ns();
  in_flight--;
  if (ok) st.ok++; else st.errors++;
  if (ok && now >= w0 && now < w1) {
    st.w_requests++;
    hist_add(&h_total, now - s->t_start);
  }
  s->state = IDLE;
  if (!ok || s->close_after) drop(s);
  s->close_after = false;
  free_slots[n_free++] = (unsigned)(s - slots);        /* the main loop restarts idle slots */
}
/* One line of --request-log. Times are ms since the request's last write; stamps are ns on CLOCK_MONOTONIC, 0 = not told. */
static void log_request(const slot_t *s) {
  uint64_t tokens = o.token_bytes ? s->content_bytes / o.token_bytes : s->usage_tokens ? s->usage_tokens : s->n_out;
  double ttft = (double)(s->t_out - s->t_sent) / 1e6, last = (double)(s->t_out_last - s->t_sent) / 1e6;
  fprintf(o.request_log,
          "{\"id\":\"load-%010u\",\"ttft_ms\":%.4f,\"last_ms\":%.4f,\"outputs\":%llu,\"tokens\":%llu,\"tpot_ms\":%.6f,\"sent_ns\":%llu,"
          "\"first_ns\":%llu,\"engine_rx_ns\":%llu,\"engine_first_ns\":%llu,\"engine_last_ns\":%llu,\"new_connection\":%s}\n", s->id, ttft, last,
          (unsigned long long)s->n_out, (unsigned long long)tokens, tokens > 1 ? (last - ttft) / (double)(tokens - 1) : 0,
          (unsigned long long)s->t_sent, (unsigned long long)s->t_out, (unsigned long long)s->eng_rx, (unsigned long long)s->eng_out,
          (unsigned long long)s->eng_out_last, s->log_fresh ? "true" : "false");
}
/* --cut: an answer that broke off, or an error status in place of one, is right where nothing before it was wrong. */
static bool cut_right(slot_t *s) {
  if (!o.cut || s->bad_seq || s->bad_hash) return false;
  if (s->status == 200 ? s->got_done : s->status < 500) return false;
  st.cut++;
  return true;
}
/* The response ended cleanly as HTTP: judge its content. */
static void complete(slot_t *s) {
  bool ok = true;
  s->fresh = false;
  if (cut_right(s)) { finish(s, true); return; }
  if (s->status != 200) st.http_err++, ok = false;
  else if (o.stream) {
    if (!s->got_done || s->carry_len) st.no_done++, ok = false;
    else if (!o.lenient && !s->got_finish) st.no_done++, ok = false;
    if (s->bad_seq) st.bad_seq++, ok = false;
    if (s->bad_hash) { st.bad_hash++; if (!o.lenient) ok = false; }
  } else if (!o.lenient) {
    char id[24];
    int n = snprintf(id, sizeof id, "\"c-%010u\"", s->id);
    if (!s->carry_len || !memmem(s->carry, s->carry_len, id, (size_t)n)) st.bad_hash++, ok = false;
  }
  if (s->status != 200 && !s->close_after) {           /* an HTTP error leaves the connection usable */
    in_flight--, st.errors++, s->state = IDLE, free_slots[n_free++] = (unsigned)(s - slots);
    return;
  }
  if (ok && o.request_log && s->in_window && s->n_out) log_request(s);
  finish(s, ok);
}
/* The connection ended: EOF or error. */
static void gone(slot_t *s) {
  if (s->state == IDLE) { drop(s); return; }
  if (s->state == BODY && !s->chunked && s->body_left < 0) { s->close_after = true; complete(s); return; }
  if (s->state != BODY && !s->hdr_len && !s->fresh) {  /* closed while idle: retry once on a new one */
    drop(s), st.reconnects++, st.retries++;
    reset_response(s);
    if (open_conn(s)) return;
  }
  if (s->state == BODY && cut_right(s)) { s->close_after = true; finish(s, true); return; }
  if (s->state == BODY) st.truncated++; else st.conn_err++;
  finish(s, false);
}

/* ---------------- SSE ---------------- */
static uint64_t field_num(const char *p, size_t n, const char *key, size_t kl) {
  const char *v = memmem(p, n, key, kl);
  return v ? strtoull(v + kl, NULL, 10) : UINT64_MAX;   /* the value is a quoted fixed-width decimal */
}
/* For --request-log: an event with content that is not empty is output. Stamps: "ts" of sse-upstream (ns), or a comment
 * line ": t=<ms>" inside the event (Weir's simulated engine). */
static void note(slot_t *s, const char *p, size_t n, uint64_t now) {
  const char *u = memmem(p, n, "\"completion_tokens\":", 20);
  if (u) s->usage_tokens = strtoull(u + 20, NULL, 10);
  const char *c = memmem(p, n, "\"content\":\"", 11), *end = p + n;
  if (!c || (c += 11) >= end || *c == '"') return;
  const char *e = memchr(c, '"', (size_t)(end - c));   /* the contents of both servers need no escapes */
  if (e) s->content_bytes += (uint64_t)(e - c);
  uint64_t ts = field_num(p, n, "\"ts\":\"", 6), rx = field_num(p, n, "\"rx\":\"", 6);
  const char *t = memmem(p, n, "\n: t=", 5);
  if (ts == UINT64_MAX) ts = t ? (uint64_t)(strtod(t + 5, NULL) * 1e6) : 0;
  if (!s->n_out++) s->t_out = now, s->eng_out = ts, s->eng_rx = rx == UINT64_MAX ? 0 : rx;
  s->t_out_last = now, s->eng_out_last = ts;
}
static void on_event(slot_t *s, const char *p, size_t n, uint64_t now) {
  st.events++, s->n_ev++;
  if (o.request_log) note(s, p, n, now);
  bool win = now >= w0 && now < w1;
  if (win) st.w_events++;
  if (!s->got_first) {
    s->got_first = true;
    if (s->in_window) hist_add(&h_ttft, now - s->t_start);
  }
  if (n >= 14 && memcmp(p, "data: [DONE]", 12) == 0) { s->got_done = true; return; }
  size_t tail = n > 96 ? 96 : n;                        /* "n" and "ts" are the last fields */
  const char *t = p + n - tail;
  uint64_t ts = field_num(t, tail, "\"ts\":\"", 6), no = field_num(t, tail, "\"n\":\"", 5);
  if (ts == UINT64_MAX) {                               /* a comment, a re-ordered object ... */
    ts = field_num(p, n, "\"ts\":\"", 6), no = field_num(p, n, "\"n\":\"", 5);
    if (ts == UINT64_MAX) {
      s->told_cut = o.cut && memmem(p, n, "\"error\"", 7);
      if (!o.lenient && !s->told_cut) s->bad_seq = true;
      return;
    }
  }
  if (win) hist_add(&h_ev, now > ts ? now - ts : 0);
  if (win && s->ts_last) {                              /* how much longer the gap is here than it was at the server */
    uint64_t here = now - s->t_event, there = ts - s->ts_last;
    hist_add(&h_gap, here > there ? here - there : 0);
  }
  s->ts_last = ts, s->t_event = now;
  if (o.series > 0) hist_add(&h_int, now > ts ? now - ts : 0);
  if (no != s->n_tok) s->bad_seq = true;
  uint64_t rx;
  if (no == 0 && s->in_window && (rx = field_num(p, n, "\"rx\":\"", 6)) != UINT64_MAX) {
    hist_add(&h_reqpath, rx > s->t_start ? rx - s->t_start : 0);
    hist_add(&h_first, now > ts ? now - ts : 0);
  }
  const char *h = memmem(p, n, "\"hash\":\"", 8);
  if (h) {
    s->got_finish = true;
    if (strtoull(h + 8, NULL, 16) != s->hash) s->bad_hash = true;
    return;
  }
  /* the stream id right after the fixed prefix proves that streams were not mixed up */
  if (!o.lenient && (n < 26 || strtoul(p + 15, NULL, 10) != s->id)) s->bad_seq = true;
  s->hash = chain_hash(s->hash, event_hash(p, n));
  s->n_tok++;
}
static void on_body(slot_t *s, const char *p, size_t n, uint64_t now) {
  if (!s->is_sse && (o.stream || o.lenient)) return;
  const char *end = p + n;
  if (!s->is_sse) {                                     /* kept whole: its end is judged */
    if (s->carry_len + n > s->carry_cap) s->carry = xrealloc(s->carry, s->carry_cap = (s->carry_len + n) * 2);
    memcpy(s->carry + s->carry_len, p, n), s->carry_len += n;
    return;
  }
  if (s->carry_len) {                                   /* complete the carried event first */
    while (p < end) {
      const char *nl = memchr(p, '\n', (size_t)(end - p));
      size_t k = nl ? (size_t)(nl - p) + 1 : (size_t)(end - p);
      if (s->carry_len + k > s->carry_cap) s->carry = xrealloc(s->carry, s->carry_cap = (s->carry_len + k) * 2);
      memcpy(s->carry + s->carry_len, p, k), s->carry_len += k, p += k;
      if (nl && s->carry_len >= 2 && s->carry[s->carry_len - 2] == '\n') {
        on_event(s, s->carry, s->carry_len, now);
        s->carry_len = 0;
        break;
      }
    }
  }
  while (p < end) {
    const char *q = p, *e = NULL;
    while ((q = memchr(q, '\n', (size_t)(end - q)))) {
      if (q + 1 < end && q[1] == '\n') { e = q + 2; break; }
      q++;
    }
    if (!e) break;
    on_event(s, p, (size_t)(e - p), now);
    p = e;
  }
  if (p < end) {
    size_t k = (size_t)(end - p);
    if (k > s->carry_cap) s->carry = xrealloc(s->carry, s->carry_cap = k * 2);
    memcpy(s->carry, p, k), s->carry_len = k;
  }
}

/* ---------------- HTTP response ---------------- */
/* Feeds n bytes; returns false if the slot's connection was closed or the response ended. */
static bool parse_head(slot_t *s) {
  size_t l;
  const char *v;
  s->status = s->hdr_len > 12 ? atoi(s->hdr + 9) : 0;
  v = find_header(s->hdr, s->hdr_len, "content-type", &l);
  s->is_sse = v && value_has(v, l, "text/event-stream");
  v = find_header(s->hdr, s->hdr_len, "transfer-encoding", &l);
  s->chunked = v && value_has(v, l, "chunked");
  v = find_header(s->hdr, s->hdr_len, "connection", &l);
  s->close_after = v && value_has(v, l, "close");
  double d;
  s->body_left = header_num(s->hdr, s->hdr_len, "content-length", &d) ? (int64_t)d : -1;
  s->state = BODY;
  return s->status >= 200;
}
static void feed(slot_t *s, char *p, size_t n, uint64_t now) {
  char *end = p + n;
  if (now >= w0 && now < w1) st.w_bytes += n;
  s->t_last = now;
  while (p < end || (s->state == BODY && !s->chunked && s->body_left == 0)) {
    if (s->state == IDLE || s->state == SENDING) { st.truncated++; finish(s, false); return; } /* unasked bytes */
    if (s->state == HEAD) {
      char *nl = memchr(p, '\n', (size_t)(end - p));
      size_t k = nl ? (size_t)(nl - p) + 1 : (size_t)(end - p);
      if (s->hdr_len + k > s->hdr_cap) s->hdr = xrealloc(s->hdr, s->hdr_cap = (s->hdr_len + k) * 2);
      memcpy(s->hdr + s->hdr_len, p, k), s->hdr_len += k, p += k;
      if (nl && s->hdr_len >= 4 && memcmp(s->hdr + s->hdr_len - 4, "\r\n\r\n", 4) == 0)
        if (!parse_head(s)) s->state = HEAD, s->hdr_len = 0;               /* 1xx: wait for the real one */
      continue;
    }
    if (!s->chunked) {
      size_t k = (size_t)(end - p);
      if (s->body_left >= 0 && (uint64_t)s->body_left < k) k = (size_t)s->body_left;
      on_body(s, p, k, now);
      p += k;
      if (s->body_left >= 0 && (s->body_left -= (int64_t)k) == 0) { complete(s); return; }
      continue;
    }
    switch (s->cs) {
    case C_SIZE: {
      int ch = tolower((unsigned char)*p++);
      if (isdigit(ch)) s->chunk_left = s->chunk_left * 16 + (uint64_t)(ch - '0');
      else if (ch >= 'a' && ch <= 'f') s->chunk_left = s->chunk_left * 16 + (uint64_t)(ch - 'a' + 10);
      else if (ch == '\n') s->cs = s->chunk_left ? C_DATA : C_TRAILER, s->trailer_len = 0;
      else if (ch != '\r' && ch != ' ') s->cs = C_EXT;
      break;
    }
    case C_EXT:
      if (*p++ == '\n') s->cs = s->chunk_left ? C_DATA : C_TRAILER, s->trailer_len = 0;
      break;
    case C_DATA: {
      size_t k = (size_t)(end - p) < s->chunk_left ? (size_t)(end - p) : s->chunk_left;
      on_body(s, p, k, now);
      p += k;
      if ((s->chunk_left -= k) == 0) s->cs = C_CR;
      break;
    }
    case C_CR:
      if (*p++ == '\n') s->cs = C_SIZE;
      break;
    case C_TRAILER:
      if (*p == '\n') { if (s->trailer_len == 0) { complete(s); return; } s->trailer_len = 0; }
      else if (*p != '\r') s->trailer_len++;
      p++;
      break;
    case C_END: return;
    }
  }
}
static void on_ready(slot_t *s, uint32_t ev) {
  if (s->fd < 0) return;
  if (s->state == SENDING && (ev & EPOLLOUT)) {
    int err = 0;
    socklen_t l = sizeof err;
    getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &l);
    if (err || !send_request(s)) { gone(s); return; }
  }
  if (!(ev & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))) return;
  for (int k = 0; k < 4 && s->fd >= 0; k++) {
    ssize_t r = recv(s->fd, rbuf, o.slow_bytes ? o.slow_bytes : RBUF, 0);
    if (r < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) gone(s);
      return;
    }
    if (r == 0) { gone(s); return; }
    st.reads++;
    feed(s, rbuf, (size_t)r, now_ns());
    if (o.slow_bytes && s->fd >= 0 && s->state != IDLE) {
      struct epoll_event e = {.events = 0, .data.u32 = (uint32_t)(s - slots)};
      epoll_ctl(ep, EPOLL_CTL_MOD, s->fd, &e);
      s->resume_at = now_ns() + (uint64_t)(o.slow_ms * 1e6);
      return;
    }
    if (r < RBUF) return;
  }
}
/* --leave and --slow: looked after every few ms. */
static void look_after(slot_t *s, uint64_t now) {
  if (s->state == IDLE || s->fd < 0) return;
  if (s->leave_at && now >= s->leave_at) {
    struct linger at_once = {1, 0};
    if (o.leave == LEAVE_RESET) setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    drop(s);
    s->state = IDLE, in_flight--, st.left++;
    free_slots[n_free++] = (unsigned)(s - slots);
  } else if (s->resume_at && now >= s->resume_at) {
    s->resume_at = 0;
    want_out(s, false, EPOLL_CTL_MOD);
  }
}

/* ---------------- main ---------------- */
static void on_signal(int x) { (void)x, stop_flag = 1; }
static void usage(void) {
  puts("usage: sse-load [options]                 result: JSON on stdout\n"
       "  --host 127.0.0.1 --port 9100 --path /v1/chat/completions   the server or proxy under test\n"
       "  --concurrency 100   streams kept open (closed loop) or connections at most (open loop)\n"
       "  --rate 0            open loop: requests/s;   --arrivals poisson|uniform\n"
       "  --duration 10       seconds during which requests are started;  --requests N  at most N of them\n"
       "  --warmup 1          seconds left out of the measured window [warmup, duration)\n"
       "  --ramp 1            closed loop: the first starts are spread over this many seconds\n"
       "  --drain 10          seconds that streams still open at the end get to finish\n"
       "  --timeout 60        a stream silent for so many seconds is an error\n"
       "  --no-stream         send \"stream\": false and count requests\n"
       "  --model sim --prompt-bytes 200 --header 'name: value' (repeatable)\n"
       "  --messages 1        the prompt is cut into so many messages\n"
       "  --leave close|reset --leave-within 5000   leave each stream at a random moment, ms after its start\n"
       "  --slow-bytes B --slow-ms M   read at most B bytes, then nothing for M ms\n"
       "  --cut               expect streams that break off, with nothing wrong before, or an error status of 500 or more\n"
       "  --lenient           for proxies that re-write events: do not require identical bytes\n"
       "  --pid P[,P..]       sample CPU and memory of these processes over the measured window\n"
       "  --request-log FILE  one JSON line for each stream that started in the window and completed; sends an x-request-id\n"
       "  --token-bytes B     in that log a token is B bytes of content; else usage says how many, else one an event\n"
       "  --series S          also report events/s, latency and CPU for every S seconds (for ramps)\n"
       "  --label TEXT        copied to the output");
  exit(0);
}
static void print_hist(const char *name, const hist_t *h) {
  printf("\"%s\":{\"n\":%llu,\"mean\":%.1f,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f},", name,
         (unsigned long long)h->n, h->n ? (double)h->sum / (double)h->n / 1e3 : 0.0, hist_pct(h, 50) / 1e3, hist_pct(h, 90) / 1e3,
         hist_pct(h, 99) / 1e3, hist_pct(h, 99.9) / 1e3, (double)h->max / 1e3);
}
int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
    if (!strcmp(a, "--help") || !strcmp(a, "-h")) usage();
    if (!strcmp(a, "--no-stream")) { o.stream = false; continue; }
    if (!strcmp(a, "--lenient")) { o.lenient = true; continue; }
    if (!strcmp(a, "--cut")) { o.cut = true; continue; }
    if (!v) die("%s needs a value", a);
    i++;
    if (!strcmp(a, "--host")) o.host = v;
    else if (!strcmp(a, "--port")) o.port = atoi(v);
    else if (!strcmp(a, "--path")) o.path = v;
    else if (!strcmp(a, "--concurrency")) o.conc = (unsigned)atoi(v);
    else if (!strcmp(a, "--rate")) o.rate = atof(v);
    else if (!strcmp(a, "--arrivals")) o.poisson = !strcmp(v, "poisson");
    else if (!strcmp(a, "--duration")) o.duration = atof(v);
    else if (!strcmp(a, "--requests")) o.max_requests = strtoull(v, NULL, 10);
    else if (!strcmp(a, "--warmup")) o.warmup = atof(v);
    else if (!strcmp(a, "--ramp")) o.ramp = atof(v);
    else if (!strcmp(a, "--drain")) o.drain = atof(v);
    else if (!strcmp(a, "--timeout")) o.timeout = atof(v);
    else if (!strcmp(a, "--series")) o.series = atof(v);
    else if (!strcmp(a, "--model")) o.model = v;
    else if (!strcmp(a, "--label")) o.label = v;
    else if (!strcmp(a, "--prompt-bytes")) o.prompt_bytes = (size_t)atol(v);
    else if (!strcmp(a, "--messages")) o.messages = (unsigned)atoi(v);
    else if (!strcmp(a, "--leave")) o.leave = !strcmp(v, "reset") ? LEAVE_RESET : LEAVE_CLOSE;
    else if (!strcmp(a, "--leave-within")) o.leave_within_ms = atof(v);
    else if (!strcmp(a, "--slow-bytes")) o.slow_bytes = (size_t)atol(v);
    else if (!strcmp(a, "--slow-ms")) o.slow_ms = atof(v);
    else if (!strcmp(a, "--token-bytes")) o.token_bytes = (size_t)atol(v);
    else if (!strcmp(a, "--request-log")) { if (!(o.request_log = fopen(v, "w"))) die("%s: %s", v, strerror(errno)); }
    else if (!strcmp(a, "--header")) { if (o.n_hdr < 16) o.user_hdr[o.n_hdr++] = v; else die("too many headers"); }
    else if (!strcmp(a, "--pid")) {
      for (const char *p = v; *p && o.n_pids < 64; p = strchr(p, ',') ? strchr(p, ',') + 1 : "") o.pids[o.n_pids++] = atoi(p);
    } else die("unknown option %s (try --help)", a);
  }
  if (!o.conc || o.conc > 60000) die("concurrency: 1..60000");
  if (o.prompt_bytes > 64u << 20 || !o.messages) die("prompt-bytes: at most 64 MiB, in at least 1 message");
  if (o.slow_bytes > RBUF) die("slow-bytes: at most %d", RBUF);
  if (raise_nofile() < o.conc + 16ull) die("the descriptor limit is too low for %u connections", o.conc);
  prctl(PR_SET_TIMERSLACK, 1);
  signal(SIGPIPE, SIG_IGN), signal(SIGINT, on_signal), signal(SIGTERM, on_signal);
  sa.sin_family = AF_INET, sa.sin_port = htons((uint16_t)o.port);
  if (inet_pton(AF_INET, o.host, &sa.sin_addr) != 1) die("bad host %s (an IPv4 address is needed)", o.host);
  rbuf = xrealloc(NULL, RBUF);
  req_tail = xrealloc(NULL, o.prompt_bytes + o.messages * 64ull + 128);
  req_tail_len = (size_t)sprintf(req_tail, ",\"messages\":[");
  for (size_t m = 0, i = 0; m < o.messages; m++) {
    req_tail_len += (size_t)sprintf(req_tail + req_tail_len, "%s{\"role\":\"%s\",\"content\":\"", m ? "," : "", m % 2 ? "assistant" : "user");
    for (size_t end = o.prompt_bytes * (m + 1) / o.messages; i < end; i++) req_tail[req_tail_len++] = i % 6 == 5 ? ' ' : (char)('a' + i % 23);
    req_tail_len += (size_t)sprintf(req_tail + req_tail_len, "\"}");
  }
  req_tail_len += (size_t)sprintf(req_tail + req_tail_len, "]}");
  body_total = req_tail_len + (size_t)snprintf(NULL, 0, "{\"model\":\"%s\",\"stream\":%s,\"user\":\"sim-%010u\"", o.model,
                                               o.stream ? "true" : "false", 1u);
  ep = epoll_create1(EPOLL_CLOEXEC);
  slots = xrealloc(NULL, sizeof *slots * o.conc);
  memset(slots, 0, sizeof *slots * o.conc);
  free_slots = xrealloc(NULL, sizeof *free_slots * (o.conc + 1));
  for (unsigned i = 0; i < o.conc; i++) slots[i].fd = -1;
  if (o.rate > 0) for (unsigned i = o.conc; i > 0; i--) free_slots[n_free++] = i - 1;

  static struct epoll_event evs[512];
  proc_t pa = sample(), pb = pa, idle = pa;
  bool have_a = false, have_b = false;
  struct rusage ru0, ru1;
  getrusage(RUSAGE_SELF, &ru0), ru1 = ru0;
  t0 = now_ns();
  w0 = t0 + (uint64_t)(o.warmup * 1e9), t_end = w1 = t0 + (uint64_t)(o.duration * 1e9);
  double prev_cpu = pa.cpu_s;
  uint64_t next_series = o.series > 0 ? t0 + (uint64_t)(o.series * 1e9) : UINT64_MAX, prev_series = t0;
  uint64_t next_arrival = t0, next_sweep = t0 + 1000000000ull, next_look = o.leave || o.slow_bytes ? t0 : UINT64_MAX, t_stop = 0;
  unsigned ramped = 0;
  double gap_ns = o.rate > 0 ? 1e9 / o.rate : 0;
  for (;;) {
    uint64_t now = now_ns();
    if (!have_a && now >= w0) pa = sample(), getrusage(RUSAGE_SELF, &ru0), w0 = now, have_a = true;
    if (!have_b && now >= w1) pb = sample(), getrusage(RUSAGE_SELF, &ru1), w1 = now, have_b = true;
    if (now >= next_series) {
      proc_t pc = sample();
      double dt = (double)(now - prev_series) / 1e9;
      if (n_series < sizeof series / sizeof *series && now < t_end + (uint64_t)(o.series * 1e9)) {
        series[n_series].t = (double)(now - t0) / 1e9, series[n_series].ev_s = (double)h_int.n / dt;
        series[n_series].p50 = (double)hist_pct(&h_int, 50) / 1e3, series[n_series].p99 = (double)hist_pct(&h_int, 99) / 1e3;
        series[n_series].cpu = h_int.n ? (pc.cpu_s - prev_cpu) * 1e6 / (double)h_int.n : 0;
        series[n_series++].streams = (unsigned)in_flight;
      }
      memset(&h_int, 0, sizeof h_int);
      prev_cpu = pc.cpu_s, prev_series = now, next_series += (uint64_t)(o.series * 1e9);
    }
    uint64_t wake = now + 1000000000ull;
    if (next_series < wake) wake = next_series;
    if (!have_a && w0 < wake) wake = w0;
    if (!have_b && w1 < wake) wake = w1;
    if (may_start()) {
      if (o.rate > 0) {
        for (; next_arrival <= now && may_start(); next_arrival += (uint64_t)(o.poisson ? gap_ns * -log(rng_uniform()) : gap_ns)) {
          if (n_free) start(&slots[free_slots[--n_free]], next_arrival);
          else st.dropped++;
        }
        if (next_arrival < wake) wake = next_arrival;
      } else {
        while (ramped < o.conc && may_start()) {
          uint64_t at = t0 + (uint64_t)(o.ramp * 1e9 * ramped / o.conc);
          if (at > now) { if (at < wake) wake = at; break; }
          start(&slots[ramped++], now_ns());
        }
        for (unsigned k = n_free; k > 0 && n_free && may_start(); k--) start(&slots[free_slots[--n_free]], now_ns());
        if (n_free) wake = now + 1000000;                  /* failed at once: retry in 1 ms */
      }
    } else {
      if (!t_stop) t_stop = now;
      bool out_of_requests = o.max_requests && started >= o.max_requests;
      if (!in_flight && (have_b || out_of_requests || stop_flag)) break;
      if (now - t_stop > (uint64_t)(o.drain * 1e9) && now >= t_end) break;
      if (stop_flag) break;
      if (wake > now + 50000000) wake = now + 50000000;
    }
    if (now >= next_look) {
      for (unsigned i = 0; i < o.conc; i++) look_after(&slots[i], now);
      next_look = now + 2000000;
    }
    if (next_look < wake) wake = next_look;
    if (now >= next_sweep) {
      next_sweep = now + 1000000000ull;
      for (unsigned i = 0; i < o.conc; i++)
        if (slots[i].state != IDLE && slots[i].fd >= 0 && now > slots[i].t_last && now - slots[i].t_last > (uint64_t)(o.timeout * 1e9))
          st.timeouts++, finish(&slots[i], false);
    }
    uint64_t d = wake > now ? wake - now : 0;
    struct timespec ts = {(time_t)(d / 1000000000ull), (long)(d % 1000000000ull)};
    int n = epoll_pwait2(ep, evs, 512, &ts, NULL);
    for (int i = 0; i < n; i++) on_ready(&slots[evs[i].data.u32], evs[i].events);
  }
  uint64_t end = now_ns();
  if (o.request_log) fclose(o.request_log);
  if (!have_a) pa = idle;
  if (!have_b) pb = sample(), getrusage(RUSAGE_SELF, &ru1), w1 = end;
  st.unfinished = in_flight;
  double win = w1 > w0 ? (double)(w1 - w0) / 1e9 : 0;
  double cpu = pb.cpu_s - pa.cpu_s, self = (double)(ru1.ru_utime.tv_sec - ru0.ru_utime.tv_sec + ru1.ru_stime.tv_sec - ru0.ru_stime.tv_sec) +
               (double)(ru1.ru_utime.tv_usec - ru0.ru_utime.tv_usec + ru1.ru_stime.tv_usec - ru0.ru_stime.tv_usec) / 1e6;
  double units = o.stream ? (double)st.w_events : (double)st.w_requests;
  printf("{\"label\":\"%s\",\"mode\":\"%s\",\"stream\":%s,\"concurrency\":%u,\"rate\":%g,\"window_s\":%.3f,", o.label,
         o.rate > 0 ? "open" : "closed", o.stream ? "true" : "false", o.conc, o.rate, win);
  printf("\"started\":%llu,\"completed\":%llu,\"errors\":%llu,\"peak_streams\":%u,", (unsigned long long)started,
         (unsigned long long)st.ok, (unsigned long long)st.errors, st.peak);
  printf("\"error_kinds\":{\"http_status\":%llu,\"connection\":%llu,\"timeout\":%llu,\"truncated\":%llu,\"no_done\":%llu,\"wrong_sequence\":%llu,"
         "\"wrong_bytes\":%llu},\"unfinished\":%llu,\"reconnects\":%llu,\"dropped\":%llu,\"left\":%llu,\"cut\":%llu,", (unsigned long long)st.http_err,
         (unsigned long long)st.conn_err, (unsigned long long)st.timeouts, (unsigned long long)st.truncated, (unsigned long long)st.no_done,
         (unsigned long long)st.bad_seq, (unsigned long long)st.bad_hash, (unsigned long long)st.unfinished,
         (unsigned long long)st.reconnects, (unsigned long long)st.dropped, (unsigned long long)st.left, (unsigned long long)st.cut);
  printf("\"events\":%llu,\"window_events\":%llu,\"events_per_s\":%.1f,\"requests_per_s\":%.1f,\"events_per_read\":%.2f,\"mb_per_s\":%.2f,",
         (unsigned long long)st.events, (unsigned long long)st.w_events, win > 0 ? st.w_events / win : 0, win > 0 ? st.w_requests / win : 0,
         st.reads ? (double)st.events / (double)st.reads : 0, win > 0 ? st.w_bytes / win / 1e6 : 0);
  print_hist("ttft_us", &h_ttft);
  print_hist("event_us", &h_ev);
  print_hist("gap_error_us", &h_gap);
  print_hist("first_event_us", &h_first);
  print_hist("request_path_us", &h_reqpath);
  print_hist("total_us", &h_total);
  if (o.n_pids)
    printf("\"proxy\":{\"cpu_s\":%.3f,\"cpu_share\":%.3f,\"cpu_us_per_event\":%.3f,\"user_us_per_event\":%.3f,\"rss_idle_kb\":%ld,\"rss_kb\":%ld,\"rss_peak_kb\":%ld,"
           "\"rss_kb_per_stream\":%.1f},", cpu, win > 0 ? cpu / win : 0, units > 0 ? cpu * 1e6 / units : 0,
           units > 0 ? (pb.user_s - pa.user_s) * 1e6 / units : 0, idle.rss_kb, pb.rss_kb, pb.hwm_kb,
           (double)(pb.rss_kb - idle.rss_kb) / o.conc);
  if (n_series) {
    printf("\"series\":[");
    for (unsigned i = 0; i < n_series; i++)
      printf("%s{\"t\":%.2f,\"streams\":%u,\"events_per_s\":%.0f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"cpu_us_per_event\":%.2f}", i ? "," : "",
             series[i].t, series[i].streams, series[i].ev_s, series[i].p50, series[i].p99, series[i].cpu);
    printf("],");
  }
  printf("\"load_cpu_share\":%.3f}\n", win > 0 ? self / win : 0);
  return st.errors ? 1 : 0;
}
