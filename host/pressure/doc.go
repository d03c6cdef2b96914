// Package pressure reads how much of the node's memory, disks and processes is left, what the processes of a pod use of
// them, and waits for the kernel's word that memory runs short.
//
// It never decides whether that is too little, and changes nothing. Package eviction calls it: the levels at
// intervals and at each notification of the kernel, what pods use only when one of them has to go. It keeps nothing;
// a crash leaves nothing behind.
package pressure
