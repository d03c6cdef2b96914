// Package pressure reads how much of the node's memory, disks and processes is left, what a pod uses of them, and lets the
// kernel tell when memory runs short.
//
// It never decides whether that is too little, and changes nothing. The agent's evictor calls it through cmd: the levels
// slowly and at each word of the kernel, what pods use only when one of them has to go. It keeps nothing; a crash leaves
// nothing behind.
package pressure
