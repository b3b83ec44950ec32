// Package suites is of Kubernetes' end-to-end tests those of a storage driver that a file describes. Upstream's own main
// has all others in it too, which take most of the time to build.
package suites

import (
	"flag"
	"fmt"
	"os"
	"testing"

	// ginkgo looks for this line.
	_ "github.com/onsi/ginkgo/v2"

	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	images "k8s.io/kubernetes/test/utils/image"

	// What is registered by being here: the suites, what the framework says of a pod that failed, what it asks of nodes.
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/e2e/storage/external"
)

func TestMain(m *testing.M) {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	names := flag.Bool("names-of-images", false, "print the images that the tests use, and end")
	flag.Parse()
	if *names {
		for _, image := range images.GetImageConfigs() {
			fmt.Println(image.GetE2EImage())
		}
		os.Exit(0)
	}
	testfiles.AddFileSource(manifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	os.Exit(m.Run())
}

func TestStorage(t *testing.T) {
	e2e.RunE2ETests(t)
}
