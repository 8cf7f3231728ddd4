//go:build !linux

package disk

func (f osFile) Sync() error { return f.File.Sync() }
