// Serves dynalite or kinesalite on a free loopback port, prints the port, and ends with whoever started it: when
// standard input is closed.
'use strict'
const [, , what, ...flags] = process.argv
const options = { createTableMs: 0, deleteTableMs: 0, updateTableMs: 0, createStreamMs: 0, deleteStreamMs: 0, updateStreamMs: 0, shardLimit: 1000 }
for (const flag of flags) {
  const [key, value] = flag.split('=')
  options[key] = key === 'path' ? value : Number(value)
}

// kinesalite does not answer a GetShardIterator AT_TIMESTAMP when no record is that new; the service answers with LATEST.
if (what === 'kinesalite') {
  const file = require.resolve('kinesalite/actions/getShardIterator')
  const original = require(file)
  const db = require('kinesalite/db')
  require.cache[file].exports = (store, data, cb) => {
    if (data.ShardIteratorType !== 'AT_TIMESTAMP' || !(data.Timestamp * 1000 <= Date.now())) return original(store, data, cb)
    const latest = { StreamName: data.StreamName, ShardId: data.ShardId, ShardIteratorType: 'LATEST' }
    original(store, latest, (err, answer) => { // before the search: what comes meanwhile is behind it
      if (err) return cb(err)
      const ix = db.resolveShardId(data.ShardId).shardIx
      let found = false
      store.getStreamDb(data.StreamName).createReadStream({ gt: db.shardIxToHex(ix), lt: db.shardIxToHex(ix + 1) })
        .on('data', item => { found = found || item.value.ApproximateArrivalTimestamp >= data.Timestamp })
        .on('error', cb)
        .on('end', () => found ? original(store, data, cb) : cb(null, answer))
    })
  }
}

const server = require(what)(options)
server.keepAliveTimeout = 0 // the clients' connections are theirs to close: no race with a request on its way
server.listen(0, '127.0.0.1', () => console.log(server.address().port))
process.stdin.resume().on('end', () => process.exit(0)).on('error', () => process.exit(0))
