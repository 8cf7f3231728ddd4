# make check test is what CI runs. make run needs nothing but Go.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

STATICCHECK := go tool -modfile=tools/go.mod staticcheck
TESTCOUNT   := go run ./internal/testcount
# Folders with a go.mod of their own, beside the tools'.
MODULES     := $(shell find . -mindepth 2 -name go.mod -not -path './tools/*' -not -path '*/node_modules/*' -printf '%h\n' | sort)

.PHONY: help
help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

.PHONY: run
run: ## the demonstration: a cinema, a crowd, a waiting room
	@go build -o .cache/usher ./cmd/usher
	@exec .cache/usher demo

.PHONY: check
check: ## formatting, vet, staticcheck, generated files, arrows, other modules, race tests
	@echo '== gofmt'
	@files=$$(gofmt -l $$(find . -name '*.go' -not -path '*/node_modules/*' -not -path './.git/*')); \
	  if [ -n "$$files" ]; then echo "not formatted, run gofmt -w on:"; echo "$$files"; exit 1; fi
	@echo '== go vet'
	@go vet ./...
	@echo '== staticcheck'
	@$(STATICCHECK) ./...
	@echo '== generated files'
	@go run ./config/internal/genschema -dir config -check
	@echo '== arrows'
	@go test ./internal/arrows
	@echo '== examples and benchmarks compile'
	@for m in $(MODULES); do echo "$$m"; (cd $$m && go vet ./...); done
	@echo '== race tests'
	@$(TESTCOUNT) -race -short -timeout 12m ./...

.PHONY: test
test: install-tools ## install what the tests need, then every test against real servers
	@USHER_TEST_ALL=1 $(TESTCOUNT) . $(MODULES) -- -timeout 15m ./...

.PHONY: soak
soak: install-tools ## the long versions of the kill and chaos tests
	@USHER_TEST_ALL=1 USHER_SOAK=1 $(TESTCOUNT) . $(MODULES) -- -timeout 4h -run 'Soak|Kill|Chaos' ./...

.PHONY: bench
bench: install-tools ## ratios against peers, into bench/RESULTS.md
	@./tools/bench

.PHONY: install-tools
install-tools: ## Debian and npm packages that the tests use
	@./tools/install

.PHONY: screenshots
screenshots: install-tools ## the pictures of the README, by the page's own tests
	@out=$$(mktemp -d) && USHER_TEST_ALL=1 USHER_SHOTS=$$out USHER_SHOTS_ONLY=waiting go test -count=1 -run TestEveryState ./web/page/browsertest && \
	  cp $$out/waiting-en-light-1440.png docs/images/waiting-desktop.png && \
	  cp $$out/waiting-ko-dark-360.png docs/images/waiting-phone.png && rm -rf $$out

.PHONY: generate
generate: ## schema, tables and what else is made from source
	go generate ./...
