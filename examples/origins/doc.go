// Package origins holds no code: its test runs the origins in the folders below, each as a real program, through the
// same requests and attacks.
package origins
