package haproc.spark;

import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.CallMethodViaReflection;
import org.apache.spark.sql.catalyst.expressions.TryReflect;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.CompoundPlanStatement;
import org.apache.spark.sql.catalyst.plans.logical.InsertIntoDir;
import org.apache.spark.sql.catalyst.plans.logical.ParsedStatement;
import org.apache.spark.sql.catalyst.plans.logical.ScriptTransformation;
import org.apache.spark.sql.catalyst.trees.TreeNode;

/** Recognises the parts of a plan that have an effect besides giving rows. */
final class Effects {
    /** Classes of the parsed tree that run statements while they are analyzed, or contain such. */
    static final Set<String> RUN_BY_ANALYZER =
            Set.of("UnresolvedExecuteImmediate", "CompoundBody");

    private Effects() {}

    static boolean isEffect(TreeNode<?> node) {
        return node instanceof Command || node instanceof ParsedStatement
                || node instanceof CompoundPlanStatement || node instanceof InsertIntoDir
                || node instanceof ScriptTransformation || node instanceof CallMethodViaReflection
                || node instanceof TryReflect
                || RUN_BY_ANALYZER.contains(node.getClass().getSimpleName());
    }
}
