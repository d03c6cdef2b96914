package pods

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/client"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/kube/apitest"
)

// storm is an API server that delays and refuses requests of Mirrors and loses responses; it counts the mirror pods.
type storm struct {
	random *rand.Rand // of the test
	server *apitest.Server

	mu    sync.Mutex
	fates *rand.Rand // of the server
	quiet bool       // no more faults
	// made counts the mirror pods that were made, by the hash of their manifest; taken the reasons there were to create
	// one again.
	made, taken map[string]int
}

// strike delays a request, refuses it, or does it and loses the answer.
func (s *storm) strike(r *http.Request) *apierrors.StatusError {
	s.mu.Lock()
	delay, fate := time.Duration(s.fates.IntN(3000))*time.Millisecond, s.fates.IntN(10)
	quiet := s.quiet
	s.mu.Unlock()
	change := r.Method == http.MethodPost || r.Method == http.MethodDelete
	if quiet || !change {
		delay, fate = 0, 9
	}
	time.Sleep(delay)
	if fate < 2 {
		return apierrors.NewInternalError(fmt.Errorf("refused"))
	}
	if r.Method == http.MethodPost {
		body, _ := io.ReadAll(r.Body)
		o, err := runtime.Decode(client.Codecs.UniversalDeserializer(), body)
		pod, ok := o.(*corev1.Pod)
		if err != nil || !ok {
			return apierrors.NewBadRequest("not a pod")
		}
		if s.server.Get("pods", "ns", "s") != nil {
			return apierrors.NewAlreadyExists(corev1.Resource("pods"), "s")
		}
		pod.Namespace = "ns"
		s.server.Put(pod)
		s.mu.Lock()
		s.made[pod.Annotations[podutil.AnnotationMirror]]++
		s.mu.Unlock()
		return apierrors.NewServiceUnavailable("the answer is lost")
	}
	return nil
}

// take notes that a mirror pod of this hash may have to be made once more.
func (s *storm) take(hash string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[hash]++
}

// deletedByUser deletes the mirror pod, gracefully as kubectl does or at once.
func (s *storm) deletedByUser(hash string) {
	p, _ := s.server.Get("pods", "ns", "s").(*corev1.Pod)
	if p == nil {
		return
	}
	if s.random.IntN(2) == 0 {
		s.take(hash)
		s.server.Delete("pods", "ns", "s")
		return
	}
	if p.DeletionTimestamp == nil {
		s.take(hash)
		p = p.DeepCopy()
		p.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(30 * time.Second)}
		s.server.Put(p)
	}
}

// TestMirrorStorm checks that through refused and lost requests, broken watches, changes of the manifest and users
// who delete mirror pods, in any order, no mirror pod is taken away that is in order, and in the end the right one is
// there.
func TestMirrorStorm(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := &storm{
				random: rand.New(rand.NewPCG(seed, 0)),
				fates:  rand.New(rand.NewPCG(seed, 1)),
				made:   map[string]int{},
				taken:  map[string]int{},
			}
			withMirrors(t, func(server *apitest.Server) {
				s.server = server
				server.Intercept(s.strike)
			}, func(b *mirrorBench) {
				hash := ""
				change := func(n int) {
					hash = fmt.Sprint(n)
					b.ending.Store(n > 0 && s.random.IntN(2) == 0)
					b.static <- []*corev1.Pod{podOf(SourceFile, "s", types.UID(hash))}
				}
				change(0)
				for n := range 40 {
					time.Sleep(time.Duration(s.random.IntN(8000)) * time.Millisecond)
					switch s.random.IntN(5) {
					case 0:
						change(n + 1)
					case 1:
						s.deletedByUser(hash)
					case 2:
						s.server.CutWatches()
					default:
						b.ending.Store(false)
						b.mirrors.Wake()
					}
				}
				s.mu.Lock()
				s.quiet = true
				s.mu.Unlock()
				b.ending.Store(false)
				b.mirrors.Wake()
				time.Sleep(5 * time.Minute)
				p := b.wantHash("s", hash)
				if p.DeletionTimestamp != nil {
					t.Error("got the mirror pod deleted, want it kept")
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				for hash, n := range s.made {
					if n > 1+s.taken[hash] {
						t.Errorf("mirror pod of manifest %s: got %d creations, want at most one more than the %d deletions by users",
							hash, n,
							s.taken[hash])
					}
				}
			})
		})
	}
}
