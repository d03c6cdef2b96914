// Package managers compares the CPU, memory and topology policies of agent/placement with the kubelet's own code,
// which it imports: it is a Go module of its own, because nodelet itself must not import that code.
//
// Random pods are admitted and removed on machines of many shapes, real and made up. Both sides must give the same
// answer to each pod: the same CPUs, the same memory, or the same refusal.
package managers
