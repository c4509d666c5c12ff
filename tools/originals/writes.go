// Writes with the Ring of go-redis: writes NAMES URL...; commands are on standard input.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

func main() {
	addresses := map[string]string{}
	database := 0
	for n, name := range strings.Split(os.Args[1], ",") {
		found, err := url.Parse(os.Args[n+2])
		if err != nil {
			panic(err)
		}
		addresses[name] = found.Host
		database, _ = strconv.Atoi(found.Path[1:])
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: addresses, DB: database})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var words []interface{}
		for _, word := range strings.Split(lines.Text(), "\t") {
			words = append(words, word)
		}
		reply, err := ring.Do(context.Background(), words...).Result()
		if err != nil {
			panic(err)
		}
		if words[0] == "GET" {
			fmt.Println(reply)
		}
	}
}
