// Package pressure reads how much of the node's memory, disks and processes is available, and waits for the kernel's
// notification of memory pressure.
//
// It never decides whether that is too little, and changes nothing. Package eviction calls it at intervals and at each
// notification of the kernel. It has no state; a crash leaves nothing behind.
package pressure
