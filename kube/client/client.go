// Package client builds the connections to the API server that the packages below kube share.
//
// It owns the scheme (only the API groups that a node agent speaks, so that the binary and its memory stay small), the
// codecs (protobuf on the wire), the reading of a kubeconfig, the time limit of one request, and the retries of a
// forbidden one. It never decides what to request: the packages below kube/ do that with its REST interfaces.
//
// cmd/nodelet makes the client that most packages share, and that of events. kube/certs makes one with the bootstrap
// kubeconfig. kube/node and kube/server make their own, whose requests must not wait for others. It keeps no state on
// disk, so a crash leaves nothing behind.
package client

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const acceptProtobuf = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON

const (
	// RequestTimeout bounds one request that reads and is not a watch: callers put it into their context. A dead
	// connection is noticed earlier, by HTTP/2 pings.
	RequestTimeout = 30 * time.Second
	// WriteTimeout bounds one request that writes. It is longer than the API server's own limit, 60 s by default: the
	// webhooks that it calls for the request may take 30 s each, also those whose failure it ignores.
	WriteTimeout = 65 * time.Second
)

// Scheme knows the API types a node agent exchanges with the API server, and no others.
var Scheme = newScheme()

// Codecs encodes and decodes the types of Scheme.
var Codecs = serializer.NewCodecFactory(Scheme)

// Parameters turns list, get, create and delete options into query parameters.
var Parameters = runtime.NewParameterCodec(Scheme)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, certificatesv1.AddToScheme, coordinationv1.AddToScheme, authenticationv1.AddToScheme,
		authorizationv1.AddToScheme, nodev1.AddToScheme, resourcev1.AddToScheme, storagev1.AddToScheme,
	} {
		utilruntime.Must(add(s))
	}
	return s
}

// Client has a REST interface for each API group. All share one HTTP transport.
type Client struct {
	// Core speaks to /api/v1: pods, nodes, configmaps, secrets, services, events, serviceaccounts.
	Core rest.Interface
	// Coordination speaks to /apis/coordination.k8s.io/v1: leases.
	Coordination rest.Interface
	// Node speaks to /apis/node.k8s.io/v1: runtimeclasses.
	Node rest.Interface
	// Certificates speaks to /apis/certificates.k8s.io/v1: certificatesigningrequests, clustertrustbundles,
	// podcertificaterequests.
	Certificates rest.Interface
	// Authentication speaks to /apis/authentication.k8s.io/v1: tokenreviews.
	Authentication rest.Interface
	// Authorization speaks to /apis/authorization.k8s.io/v1: subjectaccessreviews.
	Authorization rest.Interface
	// Storage speaks to /apis/storage.k8s.io/v1: csidrivers, csinodes, volumeattachments.
	Storage rest.Interface
	// Resource speaks to /apis/resource.k8s.io/v1: resourceclaims, resourceslices.
	Resource rest.Interface
}

// LoadConfig reads the kubeconfig file at path. The error names the file and an invalid field.
func LoadConfig(path string) (*rest.Config, error) {
	cfg, err := load(path)
	var unreadable *fs.PathError
	switch {
	case err == nil:
		return cfg, nil
	case clientcmd.IsEmptyConfig(err):
		return nil, fmt.Errorf("read kubeconfig %s: it has no cluster; want a file of kubeadm or kubectl config", path)
	case errors.As(err, &unreadable), clientcmd.IsConfigurationInvalid(err):
		return nil, fmt.Errorf("read kubeconfig %s: %w", path, err)
	}
	// The errors of the decoder show its Go types, and may show parts of the file.
	return nil, fmt.Errorf("read kubeconfig %s: it is not a kubeconfig (YAML with kind: Config)", path)
}

// load is clientcmd.BuildConfigFromFlags, which keeps the text but not the type of an error of a file.
func load(path string) (*rest.Config, error) {
	kubeconfig, err := clientcmd.LoadFromFile(path)
	if err == nil {
		err = clientcmd.ResolveLocalPaths(kubeconfig)
	}
	if err != nil {
		return nil, err
	}
	return clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
}

// New returns the REST interfaces for cfg. qps and burst are kubeAPIQPS and kubeAPIBurst of KubeletConfiguration;
// userAgent appears in the audit log of the API server.
func New(cfg *rest.Config, qps float32, burst int, userAgent string) (*Client, error) {
	base := rest.CopyConfig(cfg)
	base.ContentType, base.AcceptContentTypes = runtime.ContentTypeProtobuf, acceptProtobuf
	base.NegotiatedSerializer = Codecs.WithoutConversion()
	base.QPS, base.Burst = qps, burst
	base.UserAgent = userAgent
	base.Timeout = 0 // watches share the transport; single requests carry RequestTimeout in their context
	httpClient, err := rest.HTTPClientFor(base)
	if err != nil {
		return nil, fmt.Errorf("set up the connection to %s: %w", cfg.Host, err)
	}
	c := &Client{}
	for _, g := range []struct {
		into *rest.Interface
		gv   schema.GroupVersion
		root string
	}{
		{&c.Core, corev1.SchemeGroupVersion, "/api"},
		{&c.Coordination, coordinationv1.SchemeGroupVersion, "/apis"},
		{&c.Node, nodev1.SchemeGroupVersion, "/apis"},
		{&c.Certificates, certificatesv1.SchemeGroupVersion, "/apis"},
		{&c.Authentication, authenticationv1.SchemeGroupVersion, "/apis"},
		{&c.Authorization, authorizationv1.SchemeGroupVersion, "/apis"},
		{&c.Storage, storagev1.SchemeGroupVersion, "/apis"},
		{&c.Resource, resourcev1.SchemeGroupVersion, "/apis"},
	} {
		if *g.into, err = groupClient(base, g.gv, g.root, httpClient); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func groupClient(base *rest.Config, gv schema.GroupVersion, root string, h *http.Client) (rest.Interface, error) {
	cfg := rest.CopyConfig(base)
	cfg.GroupVersion, cfg.APIPath = &gv, root
	rc, err := rest.RESTClientForConfigAndClient(cfg, h)
	if err != nil {
		return nil, fmt.Errorf("set up the client of API group %q: %w", gv.String(), err)
	}
	return rc, nil
}
