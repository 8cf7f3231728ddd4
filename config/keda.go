package config

func (k *checker) keda(others ...endpoint) {
	if k.c.Keda.Listen == "" {
		if k.c.Keda.TLS.On() {
			k.add("keda.tls", "is given without listen", "give keda.listen, as :8082, or remove it")
		}
		return
	}
	k.tls("keda.tls", k.c.Keda.TLS)
	own, ok := k.listen("keda.listen", k.c.Keda.Listen)
	for _, o := range others {
		if ok && own.port == o.port && own.port != 0 && (own.host == o.host || own.any() || o.any()) {
			k.add("keda.listen", "is the same as public.listen or admin.listen", "give it a port of its own, as :8082")
		}
	}
}
