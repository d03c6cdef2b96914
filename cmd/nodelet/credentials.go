package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/cri/images/provider"
	"github.com/nodelet/nodelet/cri/images/records"
	"github.com/nodelet/nodelet/kube/objects"
)

// providerTokenSeconds is the lifetime of tokens for credential providers: the API server's default.
const providerTokenSeconds = 3600

// makePuller sets up the pulls of images, and the records of who may use them.
func (n *nodelet) makePuller() (*images.Puller, error) {
	c := n.cfg
	providers, err := n.credentialProviders()
	if err != nil {
		return nil, err
	}
	if c.Gate("KubeletEnsureSecretPulledImages") {
		policy, err := records.NewPolicy(c.Images.CredentialPolicy, c.Images.PreloadedAllowed)
		if err != nil {
			return nil, err
		}
		if n.records, err = records.Open(c.Paths.Root, policy, n.log); err != nil {
			return nil, err
		}
	}
	parallel := 0 // serializeImagePulls has no effect: pulls of different images run side by side
	if p := c.Kubelet.MaxParallelImagePulls; p != nil {
		parallel = int(*p)
	}
	return images.New(n.runtime, images.Config{
		MaxParallel: parallel,
		NodeConfigs: images.NodeConfigFiles(c.Paths.Root),
		Providers:   providers,
		Records:     n.records,
		Wanted:      n.collector.Wanted,
		Pulled:      n.monitor.ImagesChanged,
		Log:         n.log,
	}), nil
}

// credentialProviders sets up the credential providers; nil if none are configured.
func (n *nodelet) credentialProviders() (func(context.Context, *corev1.Pod, string) ([]images.Provided, []string),
	error) {
	i := n.cfg.Images
	if i.ProviderConfig == "" && i.ProviderBinaries == "" {
		return nil, nil
	}
	p, err := provider.New(provider.Options{
		Config:  i.ProviderConfig,
		BinDir:  i.ProviderBinaries,
		Tokens:  n.cfg.Gate("KubeletServiceAccountTokenForCredentialProviders"),
		Account: n.serviceAccount,
		Token: func(ctx context.Context, pod *corev1.Pod, audience string) (string, time.Time, error) {
			return n.objectsFor(pod).Token(ctx, pod, audience, providerTokenSeconds)
		},
		Log: n.log,
	})
	if err != nil {
		return nil, err
	}
	return p.Ask, nil
}

func (n *nodelet) serviceAccount(ctx context.Context, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
	if n.objects == nil {
		return nil, fmt.Errorf("get service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, objects.ErrNoAPI)
	}
	return n.objects.ServiceAccount(ctx, pod)
}
