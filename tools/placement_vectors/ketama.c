/* Asks libmemcached which host a key belongs to: NAME=WEIGHT …, and keys that end with \0. */
#include <libmemcached/memcached.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
  memcached_st *client = memcached_create(NULL);
  static char key[65536];
  size_t size = 0;
  int byte;
  memcached_behavior_set(client, MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1);
  for (int n = 1; n < argc; n++) {
    char *weight = strchr(argv[n], '=');
    *weight++ = 0;
    memcached_server_add_with_weight(client, argv[n], MEMCACHED_DEFAULT_PORT, atoi(weight));
  }
  while ((byte = getchar()) != EOF) {
    if (byte) {
      key[size++] = (char)byte;
    } else {
      uint32_t host = memcached_generate_hash(client, key, size);
      const char *name = memcached_server_name(memcached_server_instance_by_position(client, host));
      for (int n = 1; n < argc; n++) {
        if (!strcmp(name, argv[n])) printf("%d\n", n - 1);
      }
      size = 0;
    }
  }
  memcached_free(client);
  return 0;
}
