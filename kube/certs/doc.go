// Package certs keeps the identity of the node: the client certificate that it shows to the API server, the kubeconfig that
// names it, and the certificate that its own server on port 10250 shows.
//
// It owns <cert-dir> and, where there is a bootstrap kubeconfig, the kubeconfig; names and formats are the kubelet's, so that
// either agent goes on with the other's files. It asks for certificates (CertificateSigningRequest), waits for them by watch,
// renews them before they expire, and notices when somebody else changes its files. It never approves anything and knows no
// other resource. cmd/nodelet makes it first of all rooms below kube and hands its connections to the others; kube/server takes
// its serving certificate. A crash in the middle of a request leaves the key in <cert-dir>; the next life asks again under the
// same name and gets the same answer.
package certs
