// Package provider asks credential providers for logins to registries: programs on the node which the administrator
// names in a CredentialProviderConfig (kubelet.config.k8s.io) and which speak credentialprovider.kubelet.k8s.io over
// their standard input and output. It reads that configuration, runs the programs whose patterns match an image, once
// for all who ask the same, and keeps their answers in memory for as long as they say.
//
// It never pulls and never decides in which order logins are tried, and neither a login nor a token gets from here into
// a log, an error or a file.
//
// Package images asks it for each pull. A crash leaves nothing but a program that still runs, which ends by itself.
package provider
