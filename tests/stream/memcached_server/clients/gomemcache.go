// bradfitz/gomemcache, by the text protocol.
package main

import (
	"fmt"
	"os"

	"github.com/bradfitz/gomemcache/memcache"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	c := memcache.New("127.0.0.1:" + os.Args[1])
	check(c.Ping())
	check(c.Set(&memcache.Item{Key: "a", Value: []byte("1"), Flags: 7, Expiration: 100}))
	it, err := c.Get("a")
	check(err)
	if string(it.Value) != "1" || it.Flags != 7 {
		panic(fmt.Sprint(it))
	}
	if err := c.Add(&memcache.Item{Key: "a", Value: []byte("2")}); err != memcache.ErrNotStored {
		panic(err)
	}
	it.Value = []byte("3")
	check(c.CompareAndSwap(it))
	if err := c.CompareAndSwap(it); err != memcache.ErrCASConflict {
		panic(err)
	}
	check(c.Append(&memcache.Item{Key: "a", Value: []byte("4")}))
	check(c.Set(&memcache.Item{Key: "n", Value: []byte("5")}))
	if n, err := c.Increment("n", 10); err != nil || n != 15 {
		panic(fmt.Sprint(n, err))
	}
	if n, err := c.Decrement("n", 20); err != nil || n != 0 {
		panic(fmt.Sprint(n, err))
	}
	var keys []string
	for i := 0; i < 300; i++ {
		key := fmt.Sprint("k", i)
		keys = append(keys, key)
		check(c.Set(&memcache.Item{Key: key, Value: make([]byte, i)}))
	}
	all, err := c.GetMulti(keys)
	check(err)
	if len(all) != 300 || len(all["k299"].Value) != 299 {
		panic(len(all))
	}
	check(c.Touch("a", 50))
	if it, err = c.GetAndTouch("a", 60); err != nil || string(it.Value) != "34" {
		panic(fmt.Sprint(it, err))
	}
	check(c.Delete("a"))
	if _, err := c.Get("a"); err != memcache.ErrCacheMiss {
		panic(err)
	}
	check(c.DeleteAll())
	if _, err := c.Get("k5"); err != memcache.ErrCacheMiss {
		panic(err)
	}
}
