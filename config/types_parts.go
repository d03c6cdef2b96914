package config

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Authentication says who may talk to the server on :10250.
type Authentication struct {
	X509      X509Authentication      `json:"x509"`
	Webhook   WebhookAuthentication   `json:"webhook"`
	Anonymous AnonymousAuthentication `json:"anonymous"`
}

// X509Authentication trusts client certificates signed by an authority in ClientCAFile (PEM).
type X509Authentication struct {
	ClientCAFile string `json:"clientCAFile,omitempty"`
}

// WebhookAuthentication asks the API server's TokenReview about bearer tokens and remembers the answer for CacheTTL.
type WebhookAuthentication struct {
	Enabled  *bool           `json:"enabled,omitempty"`
	CacheTTL metav1.Duration `json:"cacheTTL,omitempty"`
}

// AnonymousAuthentication lets requests without credentials in as system:anonymous.
type AnonymousAuthentication struct {
	Enabled *bool `json:"enabled,omitempty"`
}

// Authorization says what a known caller may do: Mode is Webhook (the API server's SubjectAccessReview) or AlwaysAllow.
type Authorization struct {
	Mode    string               `json:"mode,omitempty"`
	Webhook WebhookAuthorization `json:"webhook"`
}

// WebhookAuthorization says how long answers of the API server are remembered.
type WebhookAuthorization struct {
	CacheAuthorizedTTL   metav1.Duration `json:"cacheAuthorizedTTL,omitempty"`
	CacheUnauthorizedTTL metav1.Duration `json:"cacheUnauthorizedTTL,omitempty"`
}

// MemorySwap says whether pods may swap: SwapBehavior is empty, NoSwap or LimitedSwap.
type MemorySwap struct {
	SwapBehavior string `json:"swapBehavior,omitempty"`
}

// CrashLoop caps the wait before a crashing container is started again (1 s to 300 s).
type CrashLoop struct {
	MaxContainerRestartPeriod *metav1.Duration `json:"maxContainerRestartPeriod,omitempty"`
}

// PriorityShutdown gives pods of at least this priority so many seconds at node shutdown.
type PriorityShutdown struct {
	Priority                   int32 `json:"priority"`
	ShutdownGracePeriodSeconds int64 `json:"shutdownGracePeriodSeconds"`
}

// NUMAMemory reserves memory of one NUMA node.
type NUMAMemory struct {
	NumaNode int32               `json:"numaNode"`
	Limits   corev1.ResourceList `json:"limits"`
}

// TracingConfiguration names the collector of OpenTelemetry spans.
type TracingConfiguration struct {
	Endpoint               *string `json:"endpoint,omitempty"`
	SamplingRatePerMillion *int32  `json:"samplingRatePerMillion,omitempty"`
}

// UserNamespaces sizes the range of IDs which a pod with a user namespace gets: a multiple of 65536.
type UserNamespaces struct {
	IDsPerPod *int64 `json:"idsPerPod,omitempty"`
}

// Logging is the LoggingConfiguration that all components of Kubernetes share.
type Logging struct {
	Format         string         `json:"format,omitempty"`
	FlushFrequency FlushFrequency `json:"flushFrequency"`
	Verbosity      uint32         `json:"verbosity"`
	VModule        []VModuleItem  `json:"vmodule,omitempty"`
	Options        LogOptions     `json:"options,omitempty"`
}

// VModuleItem is a verbosity for the files that match a pattern.
type VModuleItem struct {
	FilePattern string `json:"filePattern"`
	Verbosity   uint32 `json:"verbosity"`
}

// LogOptions holds the alpha options of both formats.
type LogOptions struct {
	Text LogRouting `json:"text,omitempty"`
	JSON LogRouting `json:"json,omitempty"`
}

// LogRouting splits errors from the rest, with a buffer.
type LogRouting struct {
	SplitStream    bool                   `json:"splitStream,omitempty"`
	InfoBufferSize resource.QuantityValue `json:"infoBufferSize,omitempty"`
}

// FlushFrequency is a duration which a file may write as text ("5s") or, for compatibility, as a number of
// nanoseconds.
type FlushFrequency struct {
	time.Duration
}

// UnmarshalJSON reads "5s" or 5000000000.
func (f *FlushFrequency) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var d metav1.Duration
		if err := json.Unmarshal(b, &d); err != nil {
			return err
		}
		f.Duration = d.Duration
		return nil
	}
	if err := json.Unmarshal(b, &f.Duration); err != nil {
		return fmt.Errorf("read %s as nanoseconds: %w", b, err)
	}
	return nil
}

// MarshalJSON writes the text form.
func (f FlushFrequency) MarshalJSON() ([]byte, error) { return json.Marshal(f.Duration.String()) }
