// SPDX-License-Identifier: Apache-2.0

package review

import (
	"context"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/isthmus-net/isthmus/common/access"
)

// Config configures a Reviewer.
type Config struct {
	// Kubeconfig is the path of a kubeconfig file; empty inside a cluster.
	Kubeconfig string
	// UserAgent identifies this program to the API server.
	UserAgent string
	// Audiences are those of which a token must name one; none means those of the API server.
	Audiences []string
}

// Reviewer is an API server. It is safe for concurrent use.
type Reviewer struct {
	audiences      []string
	authentication rest.Interface
	authorization  rest.Interface
}

var _ access.Authority = (*Reviewer)(nil)

// New reads the credentials. It does not connect.
func New(cfg Config) (*Reviewer, error) {
	var config *rest.Config
	var err error
	if cfg.Kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("find the API server: give a kubeconfig file outside of a pod: %w", err)
	}
	config.UserAgent = cfg.UserAgent
	config.QPS = -1 // the caller bounds the calls
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{authenticationv1.AddToScheme, authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("prepare client: %w", err)
		}
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	r := &Reviewer{audiences: cfg.Audiences}
	for gv, to := range map[schema.GroupVersion]*rest.Interface{
		authenticationv1.SchemeGroupVersion: &r.authentication, authorizationv1.SchemeGroupVersion: &r.authorization,
	} {
		c := rest.CopyConfig(config)
		c.GroupVersion, c.APIPath = &gv, "/apis"
		client, err := rest.RESTClientFor(c)
		if err != nil {
			return nil, fmt.Errorf("prepare client: %w", err)
		}
		*to = client
	}
	return r, nil
}

// Authenticate implements access.Authority.
func (r *Reviewer) Authenticate(ctx context.Context, token string) (access.User, error) {
	var answer authenticationv1.TokenReview
	err := r.authentication.Post().Resource("tokenreviews").VersionedParams(&metav1.CreateOptions{}, metav1.ParameterCodec).
		Body(&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: r.audiences}}).Do(ctx).Into(&answer)
	if err != nil {
		return access.User{}, fmt.Errorf("create TokenReview: %w", err)
	}
	s := answer.Status
	// An API server that does not know audiences leaves them out; then the token may be for another program.
	ours := len(r.audiences) == 0 || slices.ContainsFunc(s.Audiences, func(a string) bool { return slices.Contains(r.audiences, a) })
	if !s.Authenticated || !ours || s.User.Username == "" {
		return access.User{}, access.ErrUnauthenticated
	}
	u := access.User{Name: s.User.Username, UID: s.User.UID, Groups: s.User.Groups, Extra: make(map[string][]string)}
	for key, values := range s.User.Extra {
		u.Extra[key] = values
	}
	return u, nil
}

// Allowed implements access.Authority.
func (r *Reviewer) Allowed(ctx context.Context, user access.User, right access.Right) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{User: user.Name, UID: user.UID, Groups: user.Groups, Extra: make(map[string]authorizationv1.ExtraValue),
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: access.Group, Version: "*", Resource: right.Resource, Verb: right.Verb, Namespace: right.Namespace}}
	for key, values := range user.Extra {
		spec.Extra[key] = values
	}
	var answer authorizationv1.SubjectAccessReview
	err := r.authorization.Post().Resource("subjectaccessreviews").VersionedParams(&metav1.CreateOptions{}, metav1.ParameterCodec).
		Body(&authorizationv1.SubjectAccessReview{Spec: spec}).Do(ctx).Into(&answer)
	if err != nil {
		return false, fmt.Errorf("create SubjectAccessReview: %w", err)
	}
	return answer.Status.Allowed && !answer.Status.Denied, nil
}
