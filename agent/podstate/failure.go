package podstate

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Failure is a failed step that may be tried again.
type Failure struct {
	// Count is the number of consecutive failures.
	Count int
	At    time.Time
	// Delay is how long after At it may run again.
	Delay time.Duration
	// Reason is the kubelet's reason if it has one, such as ErrImagePull. Message says what failed.
	Reason  string
	Message string
	// Lacks is that of the Problem.
	Lacks bool
	// Image is the image that could not be pulled or found; empty for other steps.
	Image string
	// Looked is when the node last turned out not to have that image during the back-off.
	Looked time.Time
	Step   Step
}

// Holds reports whether the failure also applies to s, a step with the same key. A failure with one image or size
// does not apply to another, nor does that of an ephemeral container to another instance of its target.
func (f Failure) Holds(s Step) bool {
	switch next := s.(type) {
	case EnsureImage:
		return next.Image == f.Image
	case CreateContainer:
		failed, created := f.Step.(CreateContainer)
		return !created || next.Target == "" || next.Target == failed.Target
	case Resize, ResizePod:
		return SameStep(next, f.Step)
	}
	return true
}

// Retry returns when the step may run again.
func (f Failure) Retry() time.Time { return f.At.Add(f.Delay) }

// Look returns, for an image whose pull is in back-off, the step that looks whether the image is on the node, or else
// when it is time for that: another program may load the image. It returns neither if the image is to be pulled anyway.
func (f Failure) Look(s Step, now time.Time) (look Step, at time.Time) {
	image, ensures := s.(EnsureImage)
	if !ensures || image.Policy == corev1.PullAlways {
		return nil, time.Time{}
	}
	last := f.At
	if f.Looked.After(last) {
		last = f.Looked
	}
	if at = last.Add(imageRetryFirst); now.Before(at) {
		return nil, at
	}
	image.Look = true
	return image, time.Time{}
}

// fail records a failure.
func (m *Memory) fail(key Key, r Result, now time.Time, late bool) {
	f, failed := m.Failures[key]
	if s, image := r.Step.(EnsureImage); image && s.Look {
		if failed {
			f.Looked = now
			m.Failures[key] = f
		}
		return
	}
	if !f.Holds(r.Step) {
		f = Failure{}
	}
	f.Count++
	f.At = now
	f.Step = r.Step
	f.Reason, f.Message = r.Problem.Reason, r.Problem.Message
	f.Lacks = r.Problem.Lacks
	f.Delay = retryDelay(key, f)
	if late {
		f.hasten(key)
	}
	if s, image := r.Step.(EnsureImage); image {
		f.Image = s.Image
	}
	m.Failures[key] = f
	switch s := r.Step.(type) {
	case CreateContainer:
		if f.Reason != podutil.ReasonCreateContainerConfig { // then the runtime was not called
			m.forgetImages(s.Name)
		}
	case ResizePod:
		m.Prepared, m.PodSize = false, nil // it may have had its effect: Prepare reads the size
	}
}

// waitsForObjects reports whether a change of an object can make the failed step succeed.
func waitsForObjects(key Key, f Failure) bool {
	switch key.Kind {
	case KindMount, KindUnmount, KindPrepareClaims, KindUnprepareClaims:
		return true
	}
	return f.Reason == podutil.ReasonCreateContainerConfig
}

// hasten shortens the back-off after a change of an object. A pull without a secret still waits for the first back-off:
// the change may be of another object, and the registry may count the attempts.
func (f *Failure) hasten(key Key) {
	if waitsForObjects(key, *f) {
		f.Delay = 0
	} else if f.Lacks {
		f.Delay = min(f.Delay, imageRetryFirst)
	}
}

const (
	imageRetryFirst = 10 * time.Second
	imageRetryMax   = 5 * time.Minute
	// StepRetryFirst is the first back-off of a failed step.
	StepRetryFirst = time.Second
	stepRetryMax   = time.Minute
)

// retryDelay returns the back-off of a failed step: the kubelet's for pulls of images, a shorter one for all others.
func retryDelay(key Key, f Failure) time.Duration {
	image := key.Kind == KindEnsureImage || key.Kind == KindEnsureVolumeImage
	if image && f.Reason != podutil.ReasonImageInspect {
		return doubled(imageRetryFirst, f.Count-1, imageRetryMax)
	}
	return doubled(StepRetryFirst, f.Count-1, stepRetryMax)
}

// doubled returns first doubled n times, but at most limit.
func doubled(first time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && first < limit; n-- {
		first *= 2
	}
	return min(first, limit)
}
