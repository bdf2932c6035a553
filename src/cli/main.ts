#!/usr/bin/env node
/** The `weir` program: the process around the command that the arguments name. */
import type { Io } from './command.js'
import { dispatch } from './dispatch.js'

/** `weir … | head` closes the pipe early: what is written after that is nobody's, and the command ends in its own way. */
function writer(stream: NodeJS.WriteStream): (text: string) => void {
  let open = true
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error
    open = false
  })
  return text => {
    if (open) stream.write(text)
  }
}

const io: Io = { out: writer(process.stdout), err: writer(process.stderr), env: process.env }

try {
  // Not process.exit: what is still in a pipe would be lost.
  process.exitCode = await dispatch(process.argv.slice(2), io)
} catch (error) {
  io.err(`weir: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`)
  process.exitCode = 1
}
