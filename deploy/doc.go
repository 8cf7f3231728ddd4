// Package deploy tests what lies beside it: the Dockerfile's build, the systemd
// unit, alerts and dashboard, and configurations of servers in front. The
// Kubernetes manifests are tested by kubernetes/apitest.
package deploy
