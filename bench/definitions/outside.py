"""What AIPerf and vLLM's benchmark make of the recorded streams, by their own code and with the recorded times.

    pip install aiperf==0.13.0 aiohttp regex tqdm
    python bench/definitions/outside.py VLLM_0_11_0 VLLM_0_33_0    # checkouts, or wheels of these versions, unpacked

Only their clocks and sockets are replaced: the clock stands at the time at which a chunk came. Good is what keeps
TTFT within 40 ms and TPOT within 5 ms.
"""

import asyncio
import importlib.util
import json
import pathlib
import sys
import time

from aiperf.common.models import ParsedResponseRecord, RequestRecord
from aiperf.common.models.record_models import TokenCounts
from aiperf.common.exceptions import NoMetricValue
from aiperf.endpoints.openai_chat import ChatEndpoint
from aiperf.endpoints.openai_completions import CompletionsEndpoint
from aiperf.metrics.metric_dicts import MetricRecordDict
from aiperf.metrics.types.good_request_count_metric import GoodRequestCountMetric
from aiperf.metrics.types.inter_token_latency_metric import InterTokenLatencyMetric
from aiperf.metrics.types.output_sequence_length_metric import OutputSequenceLengthMetric
from aiperf.metrics.types.request_latency_metric import RequestLatencyMetric
from aiperf.metrics.types.time_to_first_output_token_metric import TimeToFirstOutputTokenMetric
from aiperf.metrics.types.ttft_metric import TTFTMetric
from aiperf.transports.sse_utils import AsyncSSEStreamReader

HERE = pathlib.Path(__file__).parent
RECORDED = HERE.parent.parent / "test" / "fixtures" / "recorded"
# Where the clocks stand when a request is sent; AIPerf takes 0 for no time.
SENT_NS = 1_000_000_000
TTFT_MS, TPOT_MS = 40, 5
VERSIONS = ("0.11.0", "0.33.0")
now_ns = SENT_NS


def find_last_usage(responses):
    return next((r.usage for r in reversed(responses) if r.usage), None)


async def chunks(recording):
    global now_ns
    for at, text in recording["chunks"]:
        now_ns = SENT_NS + round(at * 1e6)
        yield text.encode("latin1")


async def aiperf(recording):
    global now_ns
    now_ns = SENT_NS
    messages = await AsyncSSEStreamReader(chunks(recording)).read_complete_stream()
    kind = ChatEndpoint if "chat" in recording["path"] else CompletionsEndpoint
    endpoint = kind.__new__(kind)
    for name in ("debug", "trace", "warning"):
        setattr(endpoint, name, lambda *_: None)
    parsed = [p for m in messages if (p := endpoint.parse_response(m))]
    usage = find_last_usage(parsed)
    reasoning = (usage and usage.reasoning_tokens) or None
    counts = TokenCounts(
        input=usage and usage.prompt_tokens,
        output=usage and usage.completion_tokens - (reasoning or 0),
        reasoning=reasoning,
    )
    request = RequestRecord(start_perf_ns=SENT_NS, end_perf_ns=now_ns, timestamp_ns=SENT_NS, responses=messages)
    record = ParsedResponseRecord(request=request, responses=parsed, token_counts=counts)
    values = MetricRecordDict()
    for metric in (
        TTFTMetric,
        TimeToFirstOutputTokenMetric,
        RequestLatencyMetric,
        OutputSequenceLengthMetric,
        InterTokenLatencyMetric,
    ):
        try:
            values[metric.tag] = metric().parse_record(record, values)
        except NoMetricValue:
            pass
    ms = lambda tag: values[tag] / 1e6 if tag in values else None
    return {
        "ttft_ms": ms(TTFTMetric.tag),
        "first_visible_ms": ms(TimeToFirstOutputTokenMetric.tag),
        "tpot_ms": ms(InterTokenLatencyMetric.tag),
        "last_ms": ms(RequestLatencyMetric.tag),
        "tokens": values.get(OutputSequenceLengthMetric.tag),
        "good": bool(GoodRequestCountMetric()._parse_record(record, values)),
    }


class Response:
    status = 200
    reason = None

    def __init__(self, recording):
        self.recording = recording
        self.content = self

    def iter_any(self):
        return chunks(self.recording)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass


class Session:
    def __init__(self, recording):
        self.recording = recording

    def post(self, **_):
        return Response(self.recording)


async def vllm(recording, functions):
    global now_ns
    now_ns = SENT_NS
    chat = "chat" in recording["path"]
    ask = functions.async_request_openai_chat_completions if chat else functions.async_request_openai_completions
    wanted = functions.RequestFuncInput(
        prompt="", api_url=f"http://engine{recording['path']}", prompt_len=1, output_len=1, model="m"
    )
    got = await ask(wanted, Session(recording))
    if not got.success:
        return {"failed": got.error.strip().splitlines()[-1]}
    # As benchmarks/serve.py, calculate_metrics, has it; without usage it asks a tokenizer, and without that it takes 1.
    tokens = got.output_tokens or None
    tpot = (got.latency - got.ttft) / (tokens - 1) if tokens and tokens > 1 else None
    return {
        "ttft_ms": got.ttft * 1e3,
        "tpot_ms": tpot and tpot * 1e3,
        "last_ms": got.latency * 1e3,
        "tokens": tokens,
        "good": got.ttft * 1e3 <= TTFT_MS and (tpot or 0) * 1e3 <= TPOT_MS,
    }


def load(root):
    path = pathlib.Path(root) / "vllm/benchmarks/lib/endpoint_request_func.py"
    spec = importlib.util.spec_from_file_location("endpoint_request_func", path)
    functions = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = functions
    spec.loader.exec_module(functions)
    return functions


def rounded(figures):
    return {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}


async def main():
    vllms = {version: load(root) for version, root in zip(VERSIONS, sys.argv[1:], strict=True)}
    GoodRequestCountMetric.set_slos({TTFTMetric.tag: TTFT_MS, InterTokenLatencyMetric.tag: TPOT_MS})
    time.perf_counter_ns = lambda: now_ns
    time.perf_counter = lambda: now_ns / 1e9
    figures = {}
    for file in sorted(RECORDED.glob("*.json")):
        recording = json.loads(file.read_text())
        if "chunks" not in recording:
            continue
        figures[recording["name"]] = {
            "aiperf": rounded(await aiperf(recording)),
            **{f"vllm {v}": rounded(await vllm(recording, functions)) for v, functions in vllms.items()},
        }
    (RECORDED / "outside.json").write_text(json.dumps(figures, indent=1) + "\n")


asyncio.run(main())
