package agent

// mailbox is a slot for the newest value: putting never blocks, an unread older value is replaced. It has one writer.
type mailbox[T any] chan T

func newMailbox[T any]() mailbox[T] { return make(mailbox[T], 1) }

func (m mailbox[T]) put(v T) {
	select {
	case <-m:
	default:
	}
	m <- v
}
