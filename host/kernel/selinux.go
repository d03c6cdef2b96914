package kernel

import "golang.org/x/sys/unix"

// SELinux reports whether SELinux is on, in enforcing or permissive mode: its file system is mounted then.
func SELinux() bool {
	var fs unix.Statfs_t
	return unix.Statfs("/sys/fs/selinux", &fs) == nil && fs.Type == unix.SELINUX_MAGIC
}
