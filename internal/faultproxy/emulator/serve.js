// Serves dynalite or kinesalite on a free loopback port, prints the port, and ends with whoever started it: when
// standard input is closed.
'use strict'
const [, , what, ...flags] = process.argv
const options = { createTableMs: 0, deleteTableMs: 0, updateTableMs: 0, createStreamMs: 0, deleteStreamMs: 0, updateStreamMs: 0, shardLimit: 1000 }
for (const flag of flags) {
  const [key, value] = flag.split('=')
  options[key] = Number(value)
}
const server = require(what)(options)
server.keepAliveTimeout = 0 // the clients' connections are theirs to close: no race with a request on its way
server.listen(0, '127.0.0.1', () => console.log(server.address().port))
process.stdin.resume().on('end', () => process.exit(0)).on('error', () => process.exit(0))
