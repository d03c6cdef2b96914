// Package endpoints serves the part of the kubelet API about the agent and the machine rather than pods: health,
// the configuration in use, log verbosity, profiles, status pages, and the logs in /var/log.
//
// It owns the paths, the required permissions and the formats of these endpoints, which are the kubelet's. It never
// decides about pods, follows no symbolic link below the log directory, and shows no secret of the configuration.
// cmd/nodelet passes its mounts to package server. It keeps no state apart from the verbosity, which a restart resets.
package endpoints
