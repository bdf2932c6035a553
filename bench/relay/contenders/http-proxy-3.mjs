// http-proxy-3 with a keep-alive agent: node http-proxy-3.mjs PORT UPSTREAM
import http from 'node:http'
import { createProxyServer } from 'http-proxy-3'

const [port, target] = process.argv.slice(2)
const agent = new http.Agent({ keepAlive: true, maxSockets: Infinity, maxFreeSockets: 10000 })
const proxy = createProxyServer({ target, agent })
proxy.on('error', (_error, _request, response) => {
  if (!response.headersSent) response.writeHead?.(502)
  response.end()
})
http.createServer((request, response) => proxy.web(request, response)).listen(Number(port), '127.0.0.1', 4096)
