package web

// check answers whether a proxy in front may let a request through.
func (c *call) check() {
	c.fail(notFound("check mode"))
}
