// Writes with ioredis to a cluster: node writes.js URL...; commands are on standard input.
const Redis = require('ioredis');
const client = new Redis.Cluster(process.argv.slice(2));

async function main() {
  const lines = require('fs').readFileSync(0, 'utf8').split('\n').filter(Boolean);
  for (const line of lines) {
    const [name, ...words] = line.split('\t');
    const reply = await client.call(name, ...words);
    if (name === 'GET') console.log(reply);
  }
  client.disconnect();
}
main();
