// Asks go-rendezvous with xxhash, and Hash of Codis.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/cespare/xxhash"
)

type asked struct {
	Cases []struct {
		Name  string
		Names []string
		Slots []string
	}
	Keys []string
}

// As internal/hashtag of go-redis.
func tag(key string) string {
	if start := strings.IndexByte(key, '{'); start > -1 {
		if end := strings.IndexByte(key[start+1:], '}'); end > 0 {
			return key[start+1 : start+1+end]
		}
	}
	return key
}

func main() {
	var given asked
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		panic(err)
	}
	answers := [][]int{}
	for _, one := range given.Cases {
		places := []int{}
		if one.Name == "codis" {
			for _, key := range given.Keys {
				places = append(places, owner(one.Slots, int(Hash([]byte(key))%1024)))
			}
		} else {
			ring := New(one.Names, xxhash.Sum64String)
			for _, key := range given.Keys {
				node := ring.Lookup(tag(key))
				for n, name := range one.Names {
					if name == node {
						places = append(places, n)
					}
				}
			}
		}
		answers = append(answers, places)
	}
	text, _ := json.Marshal(answers)
	fmt.Println(string(text))
}

func owner(slots []string, slot int) int {
	for shard, text := range slots {
		for _, part := range strings.Fields(text) {
			var low, high int
			fmt.Sscanf(part, "%d-%d", &low, &high)
			if low <= slot && slot <= high {
				return shard
			}
		}
	}
	return -1
}
