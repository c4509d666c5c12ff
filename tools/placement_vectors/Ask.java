import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import redis.clients.jedis.util.Hashing;
import redis.clients.jedis.util.ShardInfo;
import redis.clients.jedis.util.Sharded;

/** Asks Sharded of Jedis: the hash, whether there are tags, NAME=WEIGHT …; keys end with \0. */
public class Ask {
  static class Info extends ShardInfo<Integer> {
    private final String name;
    private final int number;

    Info(String name, int number, int weight) {
      super(weight);
      this.name = name;
      this.number = number;
    }

    @Override
    protected Integer createResource() {
      return number;
    }

    @Override
    public String getName() {
      return name;
    }
  }

  public static void main(String[] args) throws Exception {
    List<Info> infos = new ArrayList<>();
    for (int n = 2; n < args.length; n++) {
      int at = args[n].lastIndexOf('=');
      String name = args[n].substring(0, at);
      int weight = Integer.parseInt(args[n].substring(at + 1));
      infos.add(new Info(name.equals("-") ? null : name, n - 2, weight));
    }
    Hashing hash = args[0].equals("md5") ? Hashing.MD5 : Hashing.MURMUR_HASH;
    Sharded<Integer, Info> sharded =
        args[1].equals("true")
            ? new Sharded<>(infos, hash, Sharded.DEFAULT_KEY_TAG_PATTERN)
            : new Sharded<>(infos, hash);
    ByteArrayOutputStream key = new ByteArrayOutputStream();
    for (byte each : System.in.readAllBytes()) {
      if (each != 0) {
        key.write(each);
        continue;
      }
      System.out.println(sharded.getShard(key.toString(StandardCharsets.UTF_8)));
      key.reset();
    }
  }
}
