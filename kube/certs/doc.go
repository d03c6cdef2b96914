// Package certs manages the identity of the node: its client certificate for the API server, the kubeconfig that names
// it, and the certificate of its own server on port 10250.
//
// It owns <cert-dir> and, if there is a bootstrap kubeconfig, the kubeconfig; names and formats are those of the
// kubelet, so that either agent can use the files of the other. It requests certificates (CertificateSigningRequest),
// watches for the answer, renews them before they expire, and notices when other programs change its files. It never
// approves a request and uses no other resource. cmd/nodelet creates it before the other packages below kube, which
// use its connections; kube/server uses its serving certificate. A crash during a request leaves the key in
// <cert-dir>: after the restart the same request is found by its name.
package certs
