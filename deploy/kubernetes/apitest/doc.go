// Package apitest tests usher and its manifests against a real Kubernetes API
// server with RBAC enforced and a real etcd, both built from their Go modules.
// There is no kubelet: pods are created, and made ready, by hand.
package apitest
