package faultbuild

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Env is the environment variable with the path of the page's file. A program of Build reads it when it starts.
const Env = "NODELET_SOAK_FAULTS"

// layout is soakPage of syscall.txt. It must not outgrow 4096 bytes.
type layout struct {
	clock, errno, perMille, device, writesOnly, inotify, failed int64

	root [512]byte
}

// Page is the memory through which a test says what goes wrong in a program of Build. Its methods take effect at once,
// and stay in effect when the program is started again.
type Page struct {
	memory []byte
	shared *layout
}

// NewPage creates the page's file. Faults of files concern those below the directory root, which must be on a device
// of its own.
func NewPage(file, root string) (*Page, error) {
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		return nil, fmt.Errorf("find the device of %s: %w", root, err)
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", file, err)
	}
	p := &Page{memory: memory, shared: (*layout)(unsafe.Pointer(&memory[0]))}
	p.shared.device = int64(st.Dev)
	if n := copy(p.shared.root[:len(p.shared.root)-1], root+"/"); n <= len(root) {
		return nil, fmt.Errorf("path %s is too long", root)
	}
	return p, nil
}

// Close ends the use of the page by the test. No other method may be called after it.
func (p *Page) Close() error { return unix.Munmap(p.memory) }

// SetClock makes the clock wrong by d.
func (p *Page) SetClock(d time.Duration) { atomic.StoreInt64(&p.shared.clock, int64(d)) }

// FailFiles makes a share of the operations on files below the root directory fail with errno; writesOnly leaves
// those alone that only read. An errno of 0 ends the fault.
func (p *Page) FailFiles(errno unix.Errno, perMille int64, writesOnly bool) {
	writes := int64(0)
	if writesOnly {
		writes = 1
	}
	atomic.StoreInt64(&p.shared.perMille, perMille)
	atomic.StoreInt64(&p.shared.writesOnly, writes)
	atomic.StoreInt64(&p.shared.errno, int64(errno))
}

// FailInotify says whether the creation of inotify instances and watches fails.
func (p *Page) FailInotify(fail bool) {
	value := int64(0)
	if fail {
		value = 1
	}
	atomic.StoreInt64(&p.shared.inotify, value)
}

// Failed returns how many system calls have failed on purpose so far.
func (p *Page) Failed() int64 { return atomic.LoadInt64(&p.shared.failed) }
