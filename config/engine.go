package config

import (
	"fmt"
	"net"
	"os"
	"reflect"
	"strconv"
)

// engine checks that the keys of the chosen kind are there, agree, and are not those of the other kind.
func (k *checker) engine() {
	e := &k.c.Engine
	for _, f := range fieldsOf(reflect.TypeFor[Engine]()) {
		if only := f.Tag.Get("only"); only != "" && only != e.Kind && k.src.set("engine."+keyOf(f)) && (e.Kind == "memory" || e.Kind == "redis") {
			k.add("engine."+keyOf(f), fmt.Sprintf("belongs to kind: %s, and kind is %s", only, e.Kind), "remove it")
		}
	}
	if e.Kind == "redis" {
		k.redis(e)
	}
}

func (k *checker) redis(e *Engine) {
	if len(e.Addrs) == 0 {
		k.add("engine.addrs", "is missing beside kind: redis", "write addrs: [127.0.0.1:6379]")
	}
	for i, addr := range e.Addrs {
		at := fmt.Sprintf("engine.addrs[%d]", i)
		host, port, err := net.SplitHostPort(addr)
		n, portErr := strconv.Atoi(port)
		switch {
		case err != nil || host == "":
			k.add(at, fmt.Sprintf("%q is not an address", addr), "write host:port, as 127.0.0.1:6379")
		case portErr != nil || n < 1 || n > 65535:
			k.add(at, fmt.Sprintf("%q is not a port", port), "choose 1 to 65535")
		}
	}
	if e.Mode == "single" && len(e.Addrs) > 1 {
		k.add("engine.addrs", fmt.Sprintf("names %d servers, and mode is single", len(e.Addrs)), "keep one, or write mode: cluster or mode: sentinel")
	}
	switch sentinel := e.Mode == "sentinel"; {
	case sentinel && e.SentinelMaster == "":
		k.add("engine.sentinel_master", "is missing beside mode: sentinel", "give the name after \"sentinel monitor\" in the Sentinels' configuration, as mymaster")
	case !sentinel:
		for _, key := range []string{"sentinel_master", "sentinel_username", "sentinel_password"} {
			if k.src.set("engine." + key) {
				k.add("engine."+key, "belongs to mode: sentinel, and mode is "+e.Mode, "write mode: sentinel, or remove it")
			}
		}
	}
	if e.Username != "" && e.Password.Empty() {
		k.add("engine.password", "is missing beside username", "give the user's password, in USHER_REDIS_PASSWORD or here")
	}
	if e.SentinelUsername != "" && e.SentinelPassword.Empty() {
		k.add("engine.sentinel_password", "is missing beside sentinel_username", "give the user's password, in USHER_SENTINEL_PASSWORD or here")
	}
	k.redisTLS(e)
}

func (k *checker) redisTLS(e *Engine) {
	for _, f := range []struct{ key, file string }{{"tls_ca", e.TLSCA}, {"tls_cert", e.TLSCert}, {"tls_key", e.TLSKey}} {
		switch info, err := os.Stat(f.file); {
		case f.file == "":
		case !e.TLS:
			k.add("engine."+f.key, "is given without tls", "write tls: true, or remove it")
		case err != nil:
			k.add("engine."+f.key, "cannot read "+f.file+": "+cause(err), "check the path and who may read it")
		case info.IsDir():
			k.add("engine."+f.key, f.file+" is a folder", "name the PEM file")
		}
	}
	switch {
	case e.TLSCert == "" && e.TLSKey != "":
		k.add("engine.tls_cert", "is missing beside tls_key", "give both, PEM files")
	case e.TLSKey == "" && e.TLSCert != "":
		k.add("engine.tls_key", "is missing beside tls_cert", "give both, PEM files")
	}
}
