// Package oom watches the kernel's log for processes that the kernel has killed because the machine is out of memory.
//
// It owns an open /dev/kmsg, of which it reads only what comes after the start. It ignores kills in a cgroup that has
// reached its own limit: the runtime reports those of containers. It never acts on a kill. Command nodelet records an
// event about each.
//
// A crash leaves nothing. What the kernel kills while no agent runs is not reported.
package oom
