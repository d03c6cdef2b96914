// Package config reads the kubelet's command line, its KubeletConfiguration file (kubelet.config.k8s.io/v1beta1) and
// the drop-in files into one immutable Config.
//
// It owns the names, defaults and limits of every field and flag of the kubelet, and the one table (settingTable) that
// says on which of them nodelet acts. A setting without effect becomes a Warning. It never inspects the machine: the
// packages that own cgroups, swap and addresses check those. It logs nothing and keeps no state, so a crash leaves
// nothing behind. cmd/nodelet calls Load once and passes the values on.
//
// Precedence, lowest first: defaults, the file of --config, the *.conf files of --config-dir in lexical order, flags.
//
// It differs from the kubelet on purpose in three places:
//   - Without a file the kubelet uses old, insecure defaults (anonymous requests allowed, every request authorized,
//     read-only port 10255 open). nodelet uses the defaults of the file.
//   - evictionHard has its defaults also if there is no file.
//   - A duplicate field is an error, and an unknown one that has a value. The kubelet logs it and goes on.
package config
