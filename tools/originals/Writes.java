import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import redis.clients.jedis.JedisShardInfo;
import redis.clients.jedis.ShardedJedis;

/** Writes with ShardedJedis: java Writes NAMES URL...; commands are on standard input. */
public class Writes {
  public static void main(String[] args) throws Exception {
    String[] names = args[0].split(",");
    List<JedisShardInfo> shards = new ArrayList<>();
    for (int n = 0; n < names.length; n++) {
      URI url = URI.create(args[n + 1]);
      // No constructor takes both a name and a database.
      shards.add(new JedisShardInfo(url.getHost(), url.getPort(), names[n]));
    }
    ShardedJedis client = new ShardedJedis(shards);
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line; (line = lines.readLine()) != null; ) {
      String[] w = line.split("\t");
      switch (w[0]) {
        case "SET": client.set(w[1], w[2]); break;
        case "SETEX": client.setex(w[1], Integer.parseInt(w[2]), w[3]); break;
        case "HSET": client.hset(w[1], w[2], w[3]); break;
        case "RPUSH": client.rpush(w[1], w[2], w[3]); break;
        case "SADD": client.sadd(w[1], w[2], w[3]); break;
        case "ZADD": client.zadd(w[1], Double.parseDouble(w[2]), w[3]); break;
        case "GET": System.out.println(client.get(w[1])); break;
        default: throw new IllegalArgumentException(w[0]);
      }
    }
    client.disconnect();
  }
}
