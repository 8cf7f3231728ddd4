// Command genschema writes config/schema.json and the reference table in
// docs/configuration.md from the structs of package config: names, defaults
// and ranges from their tags, descriptions from their comments. It runs in the
// folder of package config, by go generate.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dir := flag.String("dir", ".", "folder of package config")
	check := flag.Bool("check", false, "write nothing; fail when a file would change")
	flag.Parse()
	if err := run(*dir, *check); err != nil {
		fmt.Fprintln(os.Stderr, "genschema:", err)
		os.Exit(1)
	}
}

func run(dir string, check bool) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	docs := comments{}
	for _, file := range files {
		if err := docs.read(file); err != nil {
			return err
		}
	}
	schema, err := buildSchema(docs)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(dir, "schema.json"), schema, check); err != nil {
		return err
	}
	page := filepath.Join(dir, "..", "docs", "configuration.md")
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	updated, err := replaceTable(old, buildTable(docs))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return write(page, updated, check)
}

func write(path string, data []byte, check bool) error {
	old, err := os.ReadFile(path)
	if err == nil && string(old) == string(data) {
		return nil
	}
	if check {
		return fmt.Errorf("%s is out of date: run go generate ./config", path)
	}
	return os.WriteFile(path, data, 0o644)
}
