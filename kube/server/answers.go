package server

import (
	"context"
	"net/http"
	"net/netip"
	"time"
)

const (
	// maxLarge bounds the large answers of a port that are made or written at a time, ofNetwork those of the network of a
	// client. turnTime is how long a request waits for one of them to end, turnPoll how often it looks.
	maxLarge  = 16
	ofNetwork = 4
	turnTime  = 5 * time.Second
	turnPoll  = 100 * time.Millisecond
	// partTime bounds the writing of each part of a large answer, of partSize bytes. In a slow network a client takes
	// ten times as much.
	partTime = 30 * time.Second
	partSize = 1 << 20
)

// large serves an answer that is held in memory until the client has taken it. The answers of the read-only port, where
// clients need no credentials, do not count for others.
func (s *Server) large(serve handler) handler {
	return func(w http.ResponseWriter, r *http.Request, at place) {
		end, err := s.turn(r)
		if err != nil {
			s.fail(w, err)
			return
		}
		defer end()
		serve(&parts{ResponseWriter: w}, r, at)
	}
}

// turn waits until a request may have a large answer. Call end when it has it.
func (s *Server) turn(r *http.Request) (end func(), err error) {
	answers := s.answers
	if r.TLS == nil {
		answers = s.openAnswers
	}
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	caller := place{namespace: networkOf(from).String()}
	ctx, cancel := context.WithTimeout(r.Context(), turnTime)
	defer cancel()
	for {
		if end, err = answers.begin(caller, 1); err == nil {
			return end, nil
		}
		select {
		case <-time.After(turnPoll):
		case <-ctx.Done():
			return nil, &Error{Code: http.StatusTooManyRequests, RetryAfter: turnTime,
				Text: "too many large answers at a time; try again"}
		}
	}
}

// parts writes an answer as parts, each of which the client must take in time.
type parts struct {
	http.ResponseWriter
	left int // what the client may still take before the deadline moves
}

// Unwrap is for http.ResponseController.
func (p *parts) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Write implements io.Writer.
func (p *parts) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		if p.left == 0 {
			_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(partTime))
			p.left = partSize
		}
		k := 0
		k, err = p.ResponseWriter.Write(b[n:min(len(b), n+p.left)])
		n, p.left = n+k, p.left-k
	}
	return n, err
}

// newAnswers returns the large answers of one port, by network.
func newAnswers() *sessions { return &sessions{all: maxLarge, perPod: ofNetwork, of: map[string]int{}} }
