package latest

import "testing"

func TestValue(t *testing.T) {
	v := NewValue[int]()
	v.Put(1)
	v.Put(2)
	if got := <-v; got != 2 {
		t.Errorf("got %d, want the newest value 2", got)
	}
	select {
	case got := <-v:
		t.Errorf("got %d, want an empty slot", got)
	default:
	}
}

func TestSignal(t *testing.T) {
	s := NewSignal()
	s.Set()
	s.Set()
	<-s
	select {
	case <-s:
		t.Error("the signal is set twice, want once")
	default:
	}
}
