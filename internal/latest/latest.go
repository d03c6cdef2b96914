// Package latest passes the newest value, or the fact that something has happened, from one goroutine to another.
//
// It owns nothing but channels with one slot. Senders never block, and a receiver sees the newest value only: what was
// not received in time is replaced. All packages may use it. All is in memory, so a crash leaves nothing behind.
package latest

// Value is a slot for the newest value. It has one sender and one receiver, which receives from it as from any channel.
type Value[T any] chan T

// NewValue returns an empty slot.
func NewValue[T any]() Value[T] { return make(Value[T], 1) }

// Put replaces the value in the slot. Only one goroutine may call it.
func (v Value[T]) Put(value T) {
	select {
	case <-v:
	default:
	}
	v <- value
}

// Signal says that something has happened, once however often it was said before the receiver looks. It may have many
// senders.
type Signal chan struct{}

// NewSignal returns a signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set sets the signal.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Closed reports whether a channel is closed to which nothing is sent: whether what it stands for has happened.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
