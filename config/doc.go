// Package config turns the kubelet's command line, its KubeletConfiguration file (kubelet.config.k8s.io/v1beta1) and
// the drop-in files beside it into one immutable Config.
//
// It owns the names, defaults and limits of every field and flag of the kubelet v1.36, and the one table (knobs) that
// says which of them nodelet acts on. What a user sets and nodelet does not act on becomes a Warning; nothing is
// ignored in silence. It never looks at the machine (cgroup version, swap, addresses are judged by the rooms that own
// those facts), logs nothing and keeps no state, so a crash leaves nothing behind. cmd/nodelet calls Load once and
// hands parts of the Config on.
//
// Precedence, weakest first: defaults, the file of --config, the *.conf files of --config-dir in lexical order, flags.
//
// It differs from the kubelet on purpose in three places:
//   - Without a file the kubelet falls back to insecure settings of old (anonymous requests allowed, every request authorized,
//     read-only port 10255 open). Here the defaults of the file hold in any case.
//   - evictionHard has its defaults also when there is no file.
//   - An unknown field is an error here, as the kubelet's own strict decoding wants it, never a line in the log.
package config
