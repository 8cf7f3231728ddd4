//go:build race

package token_test

const raceEnabled = true // under the race detector sync.Pool drops at random
