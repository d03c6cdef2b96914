// Package provider gets logins to registries from credential providers: programs on the node which the administrator
// lists in a CredentialProviderConfig (kubelet.config.k8s.io). They speak credentialprovider.kubelet.k8s.io on their
// standard input and output. The package reads that configuration, runs the programs whose patterns match an image
// (concurrent requests for the same login share one run), and caches the answers in memory for the time that they say.
//
// It never pulls and never decides in which order logins are tried. It writes neither a login nor a token to a log, an
// error or a file.
//
// Package images calls it when it needs credentials. A crash leaves at most a running program, which ends by itself.
package provider
