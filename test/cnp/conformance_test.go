// SPDX-License-Identifier: Apache-2.0

package cnp

import (
	"flag"
	"os"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	api "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	reports "sigs.k8s.io/network-policy-api/conformance/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/flags"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
	"sigs.k8s.io/yaml"
)

var kubeconfig = flag.String("cluster", "", "kubeconfig file of the cluster; without it the test is skipped")

// TestConformance runs all features of the profile ClusterNetworkPolicy. The flags of the project describe the
// implementation and name the file of the report.
func TestConformance(t *testing.T) {
	if *kubeconfig == "" {
		t.Skip("needs a cluster: make cnp-conformance runs it")
	}
	implementation, err := suite.ParseImplementation(*flags.ImplementationOrganization, *flags.ImplementationProject, *flags.ImplementationURL,
		*flags.ImplementationVersion, *flags.ImplementationContact, *flags.ImplementationAdditionalInformation)
	must(t, err)
	s, err := suite.NewConformanceProfileTestSuite(suite.ConformanceProfileOptions{
		Options:             options(t),
		Implementation:      *implementation,
		ConformanceProfiles: suite.ParseConformanceProfiles(string(suite.CNPConformanceProfileName)),
	})
	must(t, err)
	s.Setup(t)
	must(t, s.Run(t, tests.ConformanceTests))
	report, err := s.Report()
	must(t, err)
	must(t, write(report))
}

// options connects to the cluster. The features are named instead of "all", so that the report lists them.
func options(t *testing.T) suite.Options {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	must(t, err)
	c, err := client.New(config, client.Options{})
	must(t, err)
	must(t, api.Install(c.Scheme()))
	set, err := kubernetes.NewForConfig(config)
	must(t, err)
	return suite.Options{Client: c, ClientSet: set, KubeConfig: *config, SupportedFeatures: suite.AllFeatures.Clone(), CleanupBaseResources: true}
}

// write writes the report in the form in which the project collects them.
func write(report *reports.ConformanceReport) error {
	text, err := yaml.Marshal(report)
	if err != nil {
		return err
	}
	return os.WriteFile(*flags.ReportOutput, text, 0o644)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
