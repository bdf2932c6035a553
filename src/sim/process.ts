/** A simulated engine in a process of its own: options as JSON in its first argument, `{url}` over IPC when ready. */
import { type EngineServerOptions, startEngine } from './server.js'

const options = JSON.parse(process.argv[2] ?? '{}') as EngineServerOptions
const server = await startEngine(options)

let leaving = false
const leave = (): void => {
  if (leaving) return
  leaving = true
  // The channel would keep the process.
  if (process.connected) process.disconnect()
  void server.close()
}
process.on('SIGTERM', leave)
process.on('SIGINT', leave)
process.on('disconnect', leave)
process.send?.({ url: server.url })
