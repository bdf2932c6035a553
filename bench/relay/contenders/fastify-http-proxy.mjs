/**
 * @fastify/http-proxy on fastify 5: `node fastify-http-proxy.mjs PORT UPSTREAM [CONNECTIONS]`. Without the third
 * argument undici keeps its default of 128 connections, beyond which streams queue.
 */
import proxy from '@fastify/http-proxy'
import Fastify from 'fastify'

const [port, upstream, connections] = process.argv.slice(2)
const app = Fastify()
const undici = { connections: Number(connections), pipelining: 1 }
await app.register(proxy, { upstream, ...(connections && { undici }) })
await app.listen({ host: '127.0.0.1', port: Number(port), backlog: 4096 })
